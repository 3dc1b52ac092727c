// An operator of our domain as ONNX Runtime wants custom operators, its nodes run through the contract of
// kernels.
#pragma once

#include <memory>
#include <vector>

#include "operators/table.h"
#include "runtime/abi/ort.h"
#include "runtime/abi/ort_ep.h"

namespace graphopt::runtime {

// One operator on one device for one element type. Must outlive the sessions that use it, and is outlived by
// the registration.
class CustomOp final : public abi::OrtCustomOp {
 public:
  // `newer`: null before 1.24.
  CustomOp(const abi::OrtApi* api, const abi::OrtApi24* newer, const Registration& registration,
           ElementType type);

  const abi::OrtApi* api;
  const abi::OrtApi24* newer;
  const Registration& registration;
  ElementType type;
};

// The domain that holds these ops, for AddCustomOpDomain.
abi::OrtCustomOpDomain* make_domain(const abi::OrtApi* api, const char* name,
                                    const std::vector<std::unique_ptr<CustomOp>>& ops);

}  // namespace graphopt::runtime
