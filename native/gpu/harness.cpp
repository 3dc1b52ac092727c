// A C interface to plans and devices, for scripts and tests (scripts/gpu_harness.py). Not part of the
// library.
//
// Functions that can fail return null or non-zero and leave the message in graphopt_error().
#include <exception>
#include <memory>
#include <string>

#include "gpu/device.h"
#include "gpu/elementwise_plan.h"
#include "gpu/group_norm_plan.h"
#include "gpu/row_norm_plan.h"
#include "gpu/scale_shift_plan.h"
#include "gpu/winograd_conv_plan.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace graphopt;
using namespace graphopt::gpu;

namespace {

thread_local std::string error;

template <class Make>
Plan* guarded(Make make) {
  try {
    return new Plan(make());
  } catch (const std::exception& e) {
    error = e.what();
    return nullptr;
  }
}

// A rank and that many dims; moves on to the next shape.
abi::Shape read_shape(const int64_t*& dims) {
  abi::Shape shape(static_cast<size_t>(*dims++));
  for (size_t d = 0; d < shape.rank(); ++d) shape[d] = *dims++;
  return shape;
}

Activation activation(int32_t kind, float a, float b) { return {static_cast<ActivationKind>(kind), a, b}; }

}  // namespace

EXPORT const char* graphopt_error() { return error.c_str(); }

// `backend`: hip, cuda, or the path of a library of kernels for the CPU.
EXPORT Device* graphopt_open(const char* backend) {
  try {
    const std::string name = backend;
    return (name == "hip" ? open_hip() : name == "cuda" ? open_cuda() : open_host(name)).release();
  } catch (const std::exception& e) {
    error = e.what();
    return nullptr;
  }
}

EXPORT const DeviceFacts* graphopt_device_facts(const Device* device) {
  return new DeviceFacts(device->facts());
}

EXPORT const DeviceFacts* graphopt_typical_facts(const char* arch) {
  try {
    return new DeviceFacts(typical_facts(arch));
  } catch (const std::exception& e) {
    error = e.what();
    return nullptr;
  }
}

EXPORT Plan* graphopt_scale_shift_plan(const DeviceFacts*, int half, int64_t N, int64_t C, int64_t inner,
                                       int residual, int32_t kind, float a, float b) {
  return guarded([&] {
    return scale_shift_plan({N, C, inner, residual != 0, activation(kind, a, b)}, half != 0, true);
  });
}

EXPORT Plan* graphopt_group_norm_plan(const DeviceFacts* device, int half, int64_t N, int64_t C,
                                      int64_t inner, int64_t groups, float epsilon, int32_t kind, float a,
                                      float b) {
  return guarded([&] {
    return group_norm_plan({N, C, inner, groups, epsilon, activation(kind, a, b)}, half != 0, true, *device);
  });
}

EXPORT Plan* graphopt_row_norm_plan(const DeviceFacts* device, int half, int64_t rows, int64_t D,
                                    float epsilon, int rms, int residual, int sum) {
  return guarded([&] {
    return row_norm_plan({rows, D, epsilon, rms != 0, residual != 0, sum != 0}, half != 0, true, *device);
  });
}

// `algorithm`, `tile` and `chunk`: -1 for the plan's own choice.
EXPORT Plan* graphopt_winograd_conv_plan(const DeviceFacts* device, int half, const int64_t* sizes,
                                         int residual, int32_t kind, float a, float b, int32_t algorithm,
                                         int32_t tile, int64_t chunk, int prepare) {
  return guarded([&] {
    ConvProblem p{sizes[0],
                  sizes[1],
                  sizes[2],
                  sizes[3],
                  sizes[4],
                  sizes[5],
                  sizes[6],
                  sizes[7],
                  sizes[8],
                  residual != 0,
                  activation(kind, a, b)};
    ConvChoice choice = algorithm < 0
                            ? choose_conv(p, half != 0, *device)
                            : choose_conv(p, half != 0, *device, static_cast<ConvAlgorithm>(algorithm));
    if (tile >= 0) choice.tile = static_cast<ConvTile>(tile);
    if (chunk >= 0) choice.chunk = chunk;
    return prepare != 0 ? winograd_conv_prepare_plan(p, half != 0, choice.algorithm)
                        : winograd_conv_plan(p, half != 0, true, choice);
  });
}

// `shapes`: of y, a, b and mask, each a rank and its dims.
EXPORT Plan* graphopt_elementwise_plan(const DeviceFacts*, int half, int32_t op, float p, float q, int binary,
                                       int masked, const int64_t* shapes) {
  return guarded([&] {
    ElementwiseProblem problem;
    problem.op = static_cast<hip::ElementwiseOp>(op);
    problem.p = p;
    problem.q = q;
    problem.binary = binary != 0;
    problem.masked = masked != 0;
    problem.y = read_shape(shapes);
    problem.a = read_shape(shapes);
    problem.b = read_shape(shapes);
    problem.mask = read_shape(shapes);
    return elementwise_plan(problem, half != 0, true);
  });
}

EXPORT const char* graphopt_plan_json(const Plan* plan) {
  static thread_local std::string json;
  json = to_json(*plan);
  return json.c_str();
}

EXPORT void graphopt_free_plan(Plan* plan) { delete plan; }

EXPORT int graphopt_run(Device* device, const Plan* plan, const void* const* inputs, void* const* outputs,
                        void* const* workspace, void* weights, void* stream) {
  try {
    device->run(*plan, {inputs, outputs, workspace, weights}, stream);
    return 0;
  } catch (const std::exception& e) {
    error = e.what();
    return 1;
  }
}
