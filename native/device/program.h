// What a node does on a device for one set of shapes, in order: launches, calls of vendor libraries, copies.
// It names the tensors of a call and parts of its workspace, not addresses, and so can be run as often as
// wanted.
#pragma once

#include <functional>
#include <initializer_list>
#include <vector>

#include "device/device.h"
#include "operators/kernel.h"

namespace graphopt::gpu {

// Memory that a step reads or writes.
struct Ref {
  enum class Kind : uint8_t { kNone, kInput, kOutput, kOptional, kWorkspace, kAddress };
  Kind kind = Kind::kNone;
  uint32_t index = 0;  // of the input or output
  int64_t at = 0;      // kWorkspace: bytes from its beginning; kAddress: the address

  static Ref input(size_t i) { return {Kind::kInput, static_cast<uint32_t>(i), 0}; }
  static Ref output(size_t i) { return {Kind::kOutput, static_cast<uint32_t>(i), 0}; }
  // One that the node may leave out and the step then has no memory for; it is run all the same.
  static Ref optional_output(size_t i) { return {Kind::kOptional, static_cast<uint32_t>(i), 0}; }
  // Memory that the kernel holds.
  static Ref held(void* memory) { return {Kind::kAddress, 0, reinterpret_cast<intptr_t>(memory)}; }
};

class Program {
 public:
  static constexpr size_t kMostInputs = 8, kMostOutputs = 3;

  explicit Program(Device& device) : device_(&device) {}
  Device& device() const { return *device_; }

  // The addresses of one step's memory, in the order in which it was named.
  struct Addresses {
    const void* inputs[kMostInputs];
    void* outputs[kMostOutputs];
  };
  // Enqueues what a vendor's library does. False when it refuses: nothing is enqueued then.
  using Library = std::function<bool(const Addresses& addresses)>;

  // A step whose first output is one that the node leaves out is not run.
  void launch(Plan plan, std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs,
              Ref weights = {});
  // With the inputs and outputs of the call in their order.
  void launch(Plan plan, const Call& call, Ref weights = {});
  void call(Library library, std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs);
  void copy(Ref to, Ref from, int64_t bytes);
  // A new part of the workspace.
  Ref reserve(int64_t bytes);

  size_t workspace_bytes() const { return static_cast<size_t>(bytes_); }
  // Which of the operator's implementations it is, and with its library fails.
  uint32_t implementation = 0;
  // False when a library has refused.
  bool run(Call& call) const;

 private:
  struct Step {
    Plan plan;
    int64_t workspace = 0;  // where that of the plan begins
    Library library;
    int64_t bytes = 0;  // to copy
    Ref inputs[kMostInputs];
    Ref outputs[kMostOutputs];
    Ref weights;
  };

  Step& add(std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs);
  void set_plan(Step& step, Plan plan, Ref weights);

  Device* device_;
  std::vector<Step> steps_;
  int64_t bytes_ = 0;
};

// A kernel whose work is a program.
class DeviceKernel : public Kernel {
 public:
  explicit DeviceKernel(Device& device) : device_(device) {}
  Device* device() const final { return &device_; }
  void plan(Call& call) const final;
  bool run(Call& call) const final;
  // There is no memory for the workspace of a planned call: its next plan does without the implementation that wants it.
  // False when it needs none, or has no other implementation left.
  static bool avoid_workspace(Call& call);

 protected:
  // Sets the outputs of the call.
  virtual void plan(Call& call, Program& program) const = 0;

  Device& device_;
};

}  // namespace graphopt::gpu
