// The work of a node on a device for one set of shapes, in order: launches, calls of vendor libraries,
// copies. A program refers to tensors by index and to the workspace by offset, not by address, so it can run any
// number of times.
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
  uint32_t index = 0;  // index of the input or output
  int64_t at = 0;      // kInput, kWorkspace: offset in bytes; kAddress: the address

  static Ref input(size_t i, int64_t offset = 0) { return {Kind::kInput, static_cast<uint32_t>(i), offset}; }
  static Ref output(size_t i) { return {Kind::kOutput, static_cast<uint32_t>(i), 0}; }
  // An output that the node may omit. The step still runs, with a null address.
  static Ref optional_output(size_t i) { return {Kind::kOptional, static_cast<uint32_t>(i), 0}; }
  // Memory that the kernel owns.
  static Ref owned(void* memory) { return {Kind::kAddress, 0, reinterpret_cast<intptr_t>(memory)}; }
};

class Program {
 public:
  static constexpr size_t kMaxInputs = 9, kMaxOutputs = 3;

  explicit Program(Device& device) : device_(&device) {}
  Device& device() const { return *device_; }

  // The addresses of a step's inputs and outputs, in the order of their declaration.
  struct Addresses {
    const void* inputs[kMaxInputs];
    void* outputs[kMaxOutputs];
  };
  // Enqueues a call of a vendor's library. Returns false if the library refuses, with nothing enqueued.
  using Library = std::function<bool(const Addresses& addresses)>;

  // Adds a step, which is skipped if the node omits the step's first output, unless it is an `optional_output`.
  void launch(Plan plan, std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs,
              Ref weights = {});
  // Adds a step that is also skipped if the first input and the first output have the same address.
  void launch_unless_in_place(Plan plan, std::initializer_list<Ref> inputs,
                              std::initializer_list<Ref> outputs);
  // Adds a step with the inputs and outputs of the call, in their order.
  void launch(Plan plan, const Call& call, Ref weights = {});
  void call(Library library, std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs);
  void copy(Ref to, Ref from, int64_t bytes);
  // Returns a new part of the workspace.
  Ref reserve(int64_t bytes);

  size_t workspace_bytes() const { return static_cast<size_t>(bytes_); }
  // Index of the operator's implementation, which is marked as failed if its library refuses.
  uint32_t implementation = 0;
  // parts[i] is the offset in bytes of output i in input 0 if the output is a contiguous part of this input, otherwise
  // -1. Empty: no output is a part. With Reuse::kParts, such an output may share the memory of the input.
  std::vector<int64_t> parts;
  // Returns false if a library has refused.
  bool run(Call& call) const;

 private:
  struct Step {
    Plan plan;
    int64_t workspace = 0;  // offset of the plan's workspace
    bool unless_in_place = false;
    Library library;
    int64_t bytes = 0;  // bytes to copy
    Ref inputs[kMaxInputs];
    Ref outputs[kMaxOutputs];
    Ref weights;
  };

  Step& add(std::initializer_list<Ref> inputs, std::initializer_list<Ref> outputs);
  void set_plan(Step& step, Plan plan, Ref weights);

  Device* device_;
  std::vector<Step> steps_;
  int64_t bytes_ = 0;
};

// A kernel that runs a program.
class DeviceKernel : public Kernel {
 public:
  explicit DeviceKernel(Device& device) : device_(device) {}
  Device* device() const final { return &device_; }
  void plan(Call& call) const final;
  bool run(Call& call) const final;
  // Excludes the implementation of a planned call from the next plan of the call, because there is no memory
  // for its workspace. Returns false if the implementation needs no workspace, or if it was already excluded,
  // which means that no other implementation is left.
  static bool avoid_workspace(Call& call);
  // Returns Program::parts of an output of a planned call.
  static int64_t part(const Call& call, size_t output);

 protected:
  // Adds the steps to `program` and sets the outputs of the call.
  virtual void plan(Call& call, Program& program) const = 0;

  Device& device_;
};

}  // namespace graphopt::gpu
