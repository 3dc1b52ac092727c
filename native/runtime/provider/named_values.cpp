#include "runtime/provider/named_values.h"

#include <algorithm>

#include "operators/layout.h"
#include "runtime/provider/region.h"

namespace graphopt::provider {
namespace {

// Returns true if the layout of tensors of this type can be changed.
bool is_image_type(ElementType type) { return type == ElementType::kHalf || is_byte(type); }

// Returns true if a kernel in channels last can read the input: its layout can be changed, its type has no layouts, or
// it is the same in both layouts. A scalar must be constant, because the runtime reports an unknown rank as 0, too.
bool fits(const NodeInGraph& node, size_t i, Layout layout) {
  const Value& value = node.inputs[i];
  if (has_layouts(value) || !is_image_type(value.type)) return true;
  const std::optional<Tensor> constant = node.is_constant(i) ? node.constant(i) : std::nullopt;
  if (constant && constant->shape.elements() == 1) return true;
  if (layout == Layout::kAny) return constant && is_column(value);
  return value.shape && (value.shape->rank() == 1 || is_column(value));
}

}  // namespace

bool has_layouts(const Value& value) {
  return is_image_type(value.type) && value.shape && value.shape->rank() == kLayoutRank;
}

bool is_column(const Value& value) {
  return is_image_type(value.type) && value.shape && value.shape->rank() == 3 && (*value.shape)[1] == 1 &&
         (*value.shape)[2] == 1;
}

NamedValues::NamedValues(Steps& steps, gpu::Device& device, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs)
    : steps_(steps), device_(device) {
  for (size_t i = 0; i < inputs.size(); ++i) known_[inputs[i]].as[false] = {Operand::Kind::kInput, i, false};
  for (size_t i = 0; i < outputs.size(); ++i) outputs_.emplace(outputs[i], static_cast<int>(i));
}

bool NamedValues::is_computed_on_host(const std::string& name) const {
  const auto found = known_.find(name);
  return found != known_.end() && found->second.as[false].kind == Operand::Kind::kValue &&
         steps_.values[found->second.as[false].index].computed_on_host;
}

bool NamedValues::is_written(const std::string& name) const {
  const auto found = known_.find(name);
  return found != known_.end() && found->second.as[false].kind == Operand::Kind::kValue;
}

int NamedValues::add(const std::string& name, bool channels_last) {
  const size_t value = new_value(name, channels_last);
  Known& known = known_[name];
  known.as[channels_last] = {Operand::Kind::kValue, value, false};
  known.written_channels_last = known.written_channels_last || channels_last;
  return static_cast<int>(value);
}

Operand NamedValues::get(const std::string& name, bool channels_last, const Value& value,
                         std::vector<StepSource>& sources) {
  const Known known = known_.at(name);
  if (known.as[channels_last].kind != Operand::Kind::kNone) return known.as[channels_last];
  Step step;
  step.op = channels_last ? "channels last" : "channels first";
  step.name = name;
  step.kernel = make_layout_change(device_, channels_last);
  step.inputs.push_back(known.as[!channels_last]);
  const Shape& shape = *value.shape;
  if (shape[1] == 1 || (shape[2] == 1 && shape[3] == 1)) step.reuse = Reuse::kAlias;
  const size_t number = new_value(name, channels_last);
  step.outputs.push_back(static_cast<int>(number));
  steps_.all.push_back(std::move(step));
  sources.emplace_back();
  if (steps_.all.back().reuse != Reuse::kAlias) count_region(RegionEvent::kConverted);
  return known_[name].as[channels_last] = {Operand::Kind::kValue, number, false};
}

bool NamedValues::add_view(const abi::GraphNode& node, std::vector<StepSource>& sources) {
  if (!node.domain().empty() || node.op != "Transpose" || !has_layouts(node.inputs[0])) return false;
  const auto found = known_.find(node.input_names()[0]);
  if (found == known_.end()) return false;
  const std::vector<int64_t> perm = node.get_ints("perm", {});
  const bool output_channels_last = perm == std::vector<int64_t>{0, 3, 1, 2};
  if (!output_channels_last && perm != std::vector<int64_t>{0, 2, 3, 1}) return false;
  const Operand& from = found->second.as[!output_channels_last];
  if (from.kind == Operand::Kind::kNone) return false;
  Step step;
  step.op = node.op;
  step.name = node.name;
  step.kernel = make_view(device_);
  step.inputs.push_back(from);
  step.reuse = Reuse::kAlias;
  steps_.all.push_back(std::move(step));
  sources.emplace_back();
  const std::string& name = node.output_names()[0];
  steps_.all.back().outputs.push_back(add(name, output_channels_last));
  if (output_channels_last && is_output(name)) get(name, false, node.outputs[0], sources);
  return true;
}

bool NamedValues::is_channels_last(const StepSource& source, const NodeInGraph& written) const {
  const NodeInGraph& node = *source.node;
  if (source.members.size() > 1 ||
      !std::all_of(written.outputs.begin(), written.outputs.end(), has_layouts) ||
      std::none_of(node.inputs.begin(), node.inputs.end(), has_layouts)) {
    return false;
  }
  const Layout layout = source.op->layout_of(node);
  if (layout == Layout::kFirst || (layout != Layout::kAny && !source.op->create_channels_last)) return false;
  bool any = false;
  for (size_t i = 0; i < source.inputs.size(); ++i) {
    const auto& [of, k] = source.inputs[i];
    if (of == nullptr || !of->has_input(k)) continue;
    const auto found = known_.find(of->input_names()[k]);
    any = any || (found != known_.end() && found->second.written_channels_last);
    // Slopes, one for each channel, are the same in both layouts.
    const bool slopes = source.tail && source.tail->has_slopes && i + 1 == source.inputs.size();
    if (!slopes && !fits(*of, k, layout)) return false;
  }
  return any || layout == Layout::kLast;
}

size_t NamedValues::new_value(const std::string& name, bool channels_last) {
  const auto output = outputs_.find(name);
  steps_.values.push_back({0, 0, !channels_last && output != outputs_.end() ? output->second : -1});
  return steps_.values.size() - 1;
}

}  // namespace graphopt::provider
