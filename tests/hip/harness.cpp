// A C interface to plans and devices, for scripts and tests (tests/hip/harness.py). It is not part of the
// library.
//
// Functions that can fail return null or non-zero and leave the message in graphopt_error().
#include <exception>
#include <optional>
#include <string>

#include "device/device.h"
#include "gemm/instruction_args.h"
#include "operators/attention/attention/op.h"
#include "operators/attention/group_query_attention/op.h"
#include "operators/attention/rotary/op.h"
#include "operators/conv/convolution/op.h"
#include "operators/conv/winograd/plan.h"
#include "operators/elementwise/activation/op.h"
#include "operators/elementwise/cast/op.h"
#include "operators/elementwise/elementwise/op.h"
#include "operators/elementwise/gated/op.h"
#include "operators/elementwise/logic/op.h"
#include "operators/elementwise/unary/op.h"
#include "operators/image/grid_sample/op.h"
#include "operators/image/nms/op.h"
#include "operators/image/resize/op.h"
#include "operators/matmul/integer_matmul/op.h"
#include "operators/matmul/linear/op.h"
#include "operators/matmul/matmul/op.h"
#include "operators/matmul/matmul_nbits/op.h"
#include "operators/movement/gather/op.h"
#include "operators/movement/generate/op.h"
#include "operators/movement/movement/op.h"
#include "operators/movement/nonzero/op.h"
#include "operators/movement/scatter/op.h"
#include "operators/normalization/group_norm/op.h"
#include "operators/normalization/layer_norm_2d/op.h"
#include "operators/normalization/row_norm/op.h"
#include "operators/normalization/scale_shift/op.h"
#include "operators/normalization/softmax/op.h"
#include "operators/pooling/pool/op.h"
#include "operators/quantized/gather_block_quantized/op.h"
#include "operators/quantized/quantize/op.h"
#include "operators/quantized/quantized/op.h"
#include "operators/reduction/reduction/op.h"
#include "operators/reduction/top_k/op.h"
#include "operators/sequence/cumsum/op.h"
#include "operators/sequence/dft/op.h"
#include "operators/sequence/recurrent/op.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace graphopt;
using namespace graphopt::gpu;

namespace {

std::optional<GemmTile> gemm_tile(int32_t tile) {
  if (tile < 0) return std::nullopt;
  return static_cast<GemmTile>(tile);
}

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

// Reads a rank and its dims, and advances to the next shape.
Shape read_shape(const int64_t*& dims) {
  Shape shape(static_cast<size_t>(*dims++));
  for (size_t d = 0; d < shape.rank(); ++d) shape[d] = *dims++;
  return shape;
}

// Reads N, groups, C, M, and then for each axis in, out, kernel, stride, dilation and pad.
ConvolutionProblem read_convolution(const int64_t* numbers) {
  ConvolutionProblem p;
  for (int64_t* member : {&p.N, &p.groups, &p.C, &p.M}) *member = *numbers++;
  for (size_t d = 0; d < kSpatialAxes; ++d) {
    for (auto* axes : {&p.in, &p.out, &p.kernel, &p.stride, &p.dilation, &p.pad}) (*axes)[d] = *numbers++;
  }
  return p;
}

IntegerProblem integers(int32_t left, int32_t right, const int64_t* has) {
  IntegerProblem p;
  p.left = static_cast<ElementType>(left);
  p.right = static_cast<ElementType>(right);
  p.left_zero = {has[0] != 0, has[0] == 2};
  p.right_zero = {has[1] != 0, has[1] == 2};
  p.has_bias = has[2] != 0;
  p.bias_m = has[3];
  p.bias_n = has[4];
  return p;
}

Activation activation(int32_t kind, float a, float b) { return {static_cast<ActivationKind>(kind), a, b}; }

}  // namespace

EXPORT const char* graphopt_error() { return error.c_str(); }

// `backend`: hip, cuda, or the path of a library of kernels for the CPU.
EXPORT Device* graphopt_open(const char* backend) {
  try {
    const std::string name = backend;
    if (name != "hip" && name != "cuda") return open_host(name).release();
    const DetectedDriver detected = name == "hip" ? find_hip() : find_cuda();
    if (detected.devices.empty()) throw std::runtime_error(detected.problem.text);
    const FoundDevice& found = detected.devices.front();
    if (!found.problem.code.empty()) throw std::runtime_error(found.problem.text);
    Device* device = (name == "hip" ? open_hip(0, found.facts) : open_cuda(0, found.facts)).release();
    device->enter();  // never left: the process does not use the thread for anything else
    return device;
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

EXPORT Plan* graphopt_shift_prelu_plan(const DeviceFacts*, int half, int64_t N, int64_t C, int64_t inner,
                                       int residual) {
  return guarded([&] { return shift_prelu_plan({N, C, inner, residual != 0, {}}, half != 0, true); });
}

EXPORT Plan* graphopt_batch_norm_plan(const DeviceFacts*, int half, int half_parameters, int64_t N, int64_t C,
                                      int64_t inner, float epsilon) {
  return guarded([&] {
    return batch_norm_plan({N, C, inner, false, {}}, epsilon, half != 0, half_parameters != 0, true);
  });
}

EXPORT Plan* graphopt_group_norm_plan(const DeviceFacts* device, int half, int channels_last, int64_t N,
                                      int64_t C, int64_t inner, int64_t groups, float epsilon, int32_t kind,
                                      float a, float b) {
  return guarded([&] {
    const GroupNormProblem p = {N, C, inner, groups, epsilon, activation(kind, a, b), channels_last != 0};
    return group_norm_plan(p, half != 0, true, *device);
  });
}

// `fused`: the whole Linear in one launch; otherwise the epilogue of a GEMM, with the GEMM's result as first
// input.
EXPORT Plan* graphopt_linear_plan(const DeviceFacts* device, int half, int64_t rows, int64_t K, int64_t N,
                                  int residual, int32_t kind, float a, float b, int fused) {
  return guarded([&] {
    const LinearProblem p = {rows, K, N, residual != 0, activation(kind, a, b)};
    if (fused != 0) return linear_plan(p, half != 0, true, *device);
    Plan plan = linear_epilogue_plan(p, half != 0, true);
    for (Launch& launch : plan.launches) {
      Buffer product = launch.slot(0);
      product.role = Role::kInput;
      launch.set_slot(0, product);
    }
    return plan;
  });
}

// `images`: number of rows of gamma and beta.
EXPORT Plan* graphopt_row_norm_plan(const DeviceFacts* device, int half, int64_t rows, int64_t D,
                                    float epsilon, int rms, int residual, int sum, int64_t images,
                                    int statistics) {
  return guarded([&] {
    return row_norm_plan({rows, D, epsilon, rms != 0, residual != 0, sum != 0, true, images, statistics != 0},
                         half != 0, true, *device);
  });
}

// `sizes`: height and width of an image, of a window and of the shift.
EXPORT Plan* graphopt_row_norm_windows_plan(const DeviceFacts* device, int half, int64_t images, int64_t D,
                                            float epsilon, int residual, int into, const int64_t* sizes) {
  return guarded([&] {
    RowNormProblem p;
    p.windows = row_windows(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]);
    p.order = into != 0 ? RowOrder::kIntoWindows : RowOrder::kFromWindows;
    p.rows = images * (residual != 0 ? p.windows.image.d : p.windows.padded_image.d);
    p.D = D;
    p.epsilon = epsilon;
    p.has_residual = p.writes_sum = residual != 0;
    return row_norm_plan(p, half != 0, true, *device);
  });
}

EXPORT Plan* graphopt_layer_norm_2d_plan(const DeviceFacts*, int half, int64_t N, int64_t C, int64_t pixels,
                                         float epsilon) {
  return guarded([&] { return layer_norm_2d_plan({N, C, pixels, epsilon}, half != 0, true); });
}

EXPORT Plan* graphopt_activation_plan(const DeviceFacts*, int half, int64_t total, int32_t kind) {
  return guarded([&] { return activation_plan({Shape{total}, activation(kind, 0, 0)}, half != 0, true); });
}

EXPORT Plan* graphopt_gated_plan(const DeviceFacts*, int half, int64_t rows, int64_t D, int halves, int gate,
                                 int32_t kind) {
  return guarded(
      [&] { return gated_plan({rows, D, halves != 0, gate, activation(kind, 0, 0)}, half != 0, true); });
}

// `sizes`: n, and three steps each of X, cos and sin; then D.
EXPORT Plan* graphopt_fused_rotary_plan(const DeviceFacts*, int half, const int64_t* sizes, int interleaved) {
  return guarded([&] {
    FusedRotaryProblem p;
    for (size_t i = 0; i < 3; ++i) {
      p.n[i] = sizes[i];
      p.x[i] = sizes[3 + i];
      p.cos[i] = sizes[6 + i];
      p.sin[i] = sizes[9 + i];
    }
    p.D = sizes[12];
    p.interleaved = interleaved != 0;
    return fused_rotary_plan(p, half != 0, true);
  });
}

// `sizes`: B, H, S, T, D, Dv, group, then the b, h, row and col strides of Q, K, V, O, bias and mask, then
// left and right.
// `flags`: bias 1, mask 2, causal 4, guard 8, window 16.
// `rows`: a value of AttentionRows, or -1 for the plan's choice.
EXPORT Plan* graphopt_fused_attention_plan(const DeviceFacts* device, int half, const int64_t* sizes,
                                           int flags, float scale, float softcap, float mask_value,
                                           int rows) {
  return guarded([&] {
    const auto strides = [&](int i) {
      const int64_t* s = sizes + 7 + 4 * i;
      return Strides4{s[0], s[1], s[2], s[3]};
    };
    AttentionProblem p;
    p.B = sizes[0];
    p.H = sizes[1];
    p.S = sizes[2];
    p.T = sizes[3];
    p.D = sizes[4];
    p.Dv = sizes[5];
    p.group = sizes[6];
    p.q = strides(0);
    p.k = strides(1);
    p.v = strides(2);
    p.o = strides(3);
    p.bias = strides(4);
    p.mask = strides(5);
    p.has_bias = (flags & 1) != 0;
    p.has_mask = (flags & 2) != 0;
    p.causal = (flags & 4) != 0;
    p.guard = (flags & 8) != 0;
    p.window = (flags & 16) != 0;
    p.left = sizes[31];
    p.right = sizes[32];
    p.scale = scale;
    p.softcap = softcap;
    p.mask_value = mask_value;
    std::optional<hip::AttentionRows> wanted;
    if (rows >= 0) wanted = static_cast<hip::AttentionRows>(rows);
    return fused_attention_plan(p, half != 0, true, *device, wanted);
  });
}

// `algorithm`, `tile` and `chunk`: -1 for the plan's choice.
EXPORT Plan* graphopt_winograd_conv_plan(const DeviceFacts* device, int half, const int64_t* sizes,
                                         int residual, int32_t kind, float a, float b, int32_t algorithm,
                                         int32_t tile, int64_t chunk, int prepare) {
  return guarded([&] {
    ConvolutionProblem p = convolution_3x3(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                                           {sizes[5], sizes[6], sizes[7], sizes[8]});
    p.has_residual = residual != 0;
    p.act = activation(kind, a, b);
    ConvChoice choice = algorithm < 0
                            ? choose_conv(p, half != 0, *device)
                            : choose_conv(p, half != 0, *device, static_cast<ConvAlgorithm>(algorithm));
    if (tile >= 0) choice.tile = static_cast<GemmTile>(tile);
    if (chunk >= 0) choice.chunk = chunk;
    return prepare != 0 ? winograd_conv_prepare_plan(p, half != 0, choice.algorithm)
                        : winograd_conv_plan(p, half != 0, true, choice, *device);
  });
}

// `shapes`: rank and dims of y, a, b and mask.
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

// `sizes`: B, S, N, H, half, positions; `flags`: heads_first, one_id, interleaved.
EXPORT Plan* graphopt_rotary_plan(const DeviceFacts*, int half, const int64_t* sizes, const int* flags) {
  return guarded([&] {
    return rotary_plan({sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], flags[0] != 0,
                        flags[1] != 0, flags[2] != 0},
                       half != 0, true);
  });
}

// `flags`: has_zero_points, packed_zero_points, has_g_idx, has_bias, aligned. `tile`: -1 for the plan's choice.
EXPORT Plan* graphopt_matmul_nbits_plan(const DeviceFacts* device, int half, int64_t M, int64_t N, int64_t K,
                                        int bits, int64_t size, const int* flags, int32_t tile) {
  return guarded([&] {
    return matmul_nbits_plan(
        {M, N, K, bits, size, flags[0] != 0, flags[1] != 0, flags[2] != 0, flags[3] != 0}, half != 0,
        flags[4] != 0, *device, gemm_tile(tile));
  });
}

// `flags`: has_zero_points, packed_zero_points, has_g_idx.
EXPORT Plan* graphopt_dequantize_nbits_plan(const DeviceFacts*, int half, int64_t N, int64_t K, int bits,
                                            int64_t size, const int* flags) {
  return guarded([&] {
    return dequantize_nbits_plan({1, N, K, bits, size, flags[0] != 0, flags[1] != 0, flags[2] != 0, false},
                                 half != 0, true);
  });
}

// `sizes`: B, S, N, G, H, length, past_length, half, positions, window, capacity, bias_batch, bias_heads, bias_keys.
// `flags`: first, packed, causal, smooth, interleaved, has_ids, norms, has_sink.
// `part`: 0 for the new tokens, 1 for the past ones, 2 for the attention; 3 and 4 for an int8 cache with one scale, and
// with one for each channel; 5 and 6 for a windowed cache, before and after the attention; 7 and 8 for a float8 cache.
EXPORT Plan* graphopt_gqa_plan(const DeviceFacts* device, int half, int part, const int64_t* sizes,
                               const int* flags, float scale, float softcap, float epsilon) {
  return guarded([&] {
    GqaProblem p;
    int64_t* const to[] = {&p.B,        &p.S,           &p.N,          &p.G,         &p.H,
                           &p.length,   &p.past_length, &p.half,       &p.positions, &p.window,
                           &p.capacity, &p.bias_batch,  &p.bias_heads, &p.bias_keys};
    for (int64_t* size : to) *size = *sizes++;
    bool* const set[] = {&p.first,       &p.packed,  &p.causal, &p.smooth,
                         &p.interleaved, &p.has_ids, &p.norms,  &p.has_sink};
    for (bool* flag : set) *flag = *flags++ != 0;
    p.scale = scale;
    p.softcap = softcap;
    p.q_epsilon = p.k_epsilon = epsilon;
    if (part == 0) return gqa_new_plan(p, half != 0, true);
    if (part == 1) return gqa_past_plan(p, half != 0, true);
    if (part == 5 || part == 6) return gqa_window_plan(p, half != 0, true, part == 6);
    if (part > 2) return gqa_quantized_plan(p, half != 0, part % 4 == 0, part > 6);
    return fused_attention_plan(gqa_attention(p), half != 0, true, *device);
  });
}

// `limits`: of kClip. `shapes`: rank and dims of y, a, b and mask.
EXPORT Plan* graphopt_integer_elementwise_plan(const DeviceFacts*, int64_t bytes, int32_t is_signed,
                                               int32_t op, int32_t inputs, const int64_t* limits,
                                               const int64_t* shapes) {
  return guarded([&] {
    IntegerElementwiseProblem problem;
    problem.op = static_cast<IntegerOp>(op);
    problem.binary = inputs > 1;
    problem.masked = inputs > 2;
    problem.is_signed = is_signed != 0;
    problem.bytes = bytes;
    problem.low = limits[0];
    problem.high = limits[1];
    problem.y = read_shape(shapes);
    problem.a = read_shape(shapes);
    problem.b = read_shape(shapes);
    problem.mask = read_shape(shapes);
    return integer_elementwise_plan(problem, true);
  });
}

// `sizes`: outer, size, inner, and the indices of a block; 0 for one scale for each index, -1 for a single
// scale.
EXPORT Plan* graphopt_quantize_plan(const DeviceFacts*, int32_t quantized, int half, int zero,
                                    int dequantizes, int zero_first, const int64_t* sizes) {
  return guarded([&] {
    QuantizeProblem p;
    p.outer = sizes[0];
    p.size = sizes[1];
    p.inner = sizes[2];
    p.scales = sizes[3] < 0 ? Scales::kOne : sizes[3] == 0 ? Scales::kAxis : Scales::kBlocks;
    if (sizes[3] > 0) p.block = sizes[3];
    p.quantized = static_cast<ElementType>(quantized);
    p.half = half != 0;
    p.zero = zero != 0;
    p.dequantizes = dequantizes != 0;
    p.zero_first = zero_first != 0;
    return quantize_plan(p, true);
  });
}

// `has`: signed, zero points of a, b and y. `shapes`: rank and dims of a, b and y.
// `sizes`: outer, size, inner, indices; q_outer, q_size, q_inner, block; zero points in a row.
EXPORT Plan* graphopt_gather_block_quantized_plan(const DeviceFacts*, int bits, int is_signed, int has_zero,
                                                  int default_zero, int narrow, int half,
                                                  const int64_t* sizes) {
  return guarded([&] {
    GatherBlocksProblem p;
    p.outer = sizes[0];
    p.size = sizes[1];
    p.inner = sizes[2];
    p.indices = sizes[3];
    p.q_outer = sizes[4];
    p.q_size = sizes[5];
    p.q_inner = sizes[6];
    p.block = sizes[7];
    p.zero_row = sizes[8];
    p.bits = bits;
    p.is_signed = is_signed != 0;
    p.has_zero = has_zero != 0;
    p.default_zero = default_zero;
    p.narrow = narrow != 0;
    p.half = half != 0;
    return gather_block_quantized_plan(p, true);
  });
}

EXPORT Plan* graphopt_quantized_plan(const DeviceFacts*, int32_t op, int32_t kind, float alpha,
                                     const int64_t* has, const int64_t* shapes) {
  return guarded([&] {
    QuantizedProblem p;
    p.op = static_cast<QuantizedOp>(op);
    p.act = activation(kind, alpha, 0);
    for (bool* member : {&p.is_signed, &p.a_zero, &p.b_zero, &p.y_zero}) *member = *has++ != 0;
    for (Shape* member : {&p.a, &p.b, &p.y}) *member = read_shape(shapes);
    return quantized_plan(p, true);
  });
}

// `numbers`: outer, size, inner, signed, zero points of x and y.
EXPORT Plan* graphopt_quantized_lines_plan(const DeviceFacts*, int softmax, const int64_t* numbers) {
  return guarded([&] {
    QuantizedLines p;
    for (int64_t* member : {&p.outer, &p.size, &p.inner}) *member = *numbers++;
    for (bool* member : {&p.is_signed, &p.x_zero, &p.y_zero}) *member = *numbers++ != 0;
    return softmax != 0 ? quantized_softmax_plan(p) : quantized_mean_plan(p, true);
  });
}

EXPORT Plan* graphopt_quantized_exponentials_plan(const DeviceFacts*, int64_t size) {
  return guarded([&] { return quantized_exponentials_plan(size); });
}

EXPORT Plan* graphopt_range_plan(const DeviceFacts*, int32_t type, double start, double step, int64_t total) {
  return guarded([&] {
    RangeProblem p;
    p.type = static_cast<ElementType>(type);
    p.total = total;
    p.start = static_cast<float>(start);
    p.step = static_cast<float>(step);
    p.integer_start = static_cast<int64_t>(start);
    p.integer_step = static_cast<int64_t>(step);
    return range_plan(p);
  });
}

EXPORT Plan* graphopt_fill_plan(const DeviceFacts*, int64_t total, int64_t bytes, uint64_t bits) {
  return guarded([&] { return fill_plan({total, bytes, bits}, true); });
}

EXPORT Plan* graphopt_nonzero_count_plan(const DeviceFacts*, int64_t total, int64_t bytes, int is_float) {
  return guarded([&] { return nonzero_count_plan(total, {bytes, is_float != 0}); });
}

// `dims`: rank and dims of x.
EXPORT Plan* graphopt_nonzero_indices_plan(const DeviceFacts*, const int64_t* dims, int64_t bytes,
                                           int is_float, int64_t all) {
  return guarded([&] { return nonzero_indices_plan(read_shape(dims), {bytes, is_float != 0}, all); });
}

EXPORT Plan* graphopt_trilu_plan(const DeviceFacts*, int64_t batch, int64_t rows, int64_t columns, int64_t k,
                                 int64_t bytes, int upper) {
  return guarded([&] { return trilu_plan({batch, rows, columns, k, upper != 0, bytes}, true); });
}

EXPORT Plan* graphopt_one_hot_plan(const DeviceFacts*, int64_t outer, int64_t depth, int64_t inner,
                                   int32_t type, int64_t bytes) {
  return guarded(
      [&] { return one_hot_plan({outer, depth, inner, static_cast<IndexType>(type), bytes}, true); });
}

EXPORT Plan* graphopt_unary_plan(const DeviceFacts*, int half, int32_t op, float alpha, int64_t total,
                                 int aligned) {
  return guarded(
      [&] { return unary_plan(static_cast<hip::UnaryOp>(op), alpha, total, half != 0, aligned != 0); });
}

// `shapes`: rank and dims of y, a and b.
EXPORT Plan* graphopt_logic_plan(const DeviceFacts*, int32_t type, int32_t op, int binary,
                                 const int64_t* shapes) {
  return guarded([&] {
    LogicProblem problem;
    problem.op = static_cast<hip::LogicOp>(op);
    problem.type = static_cast<ElementType>(type);
    problem.binary = binary != 0;
    problem.y = read_shape(shapes);
    problem.a = read_shape(shapes);
    problem.b = read_shape(shapes);
    return logic_plan(problem, true);
  });
}

// `numbers`: the rank and dims of the shape, the strides of x, the strides of y, the two offsets.
EXPORT Plan* graphopt_strided_copy_plan(const DeviceFacts*, int64_t bytes, const int64_t* numbers) {
  return guarded([&] {
    StridedCopy copy;
    copy.bytes = bytes;
    copy.shape = read_shape(numbers);
    const auto rank = static_cast<ptrdiff_t>(copy.shape.rank());
    copy.x_strides.assign(numbers, numbers + rank);
    copy.y_strides.assign(numbers + rank, numbers + 2 * rank);
    copy.x_offset = numbers[2 * rank];
    copy.y_offset = numbers[2 * rank + 1];
    return strided_copy_plan(copy, true);
  });
}

// `numbers`: the members of the problem and the number of inputs, then the width of each input.
EXPORT Plan* graphopt_concat_plan(const DeviceFacts*, const int64_t* numbers, int aligned) {
  return guarded([&] {
    ConcatProblem p;
    for (int64_t* member : {&p.bytes, &p.rows, &p.pitch, &p.first}) *member = *numbers++;
    const int64_t inputs = *numbers++;
    p.widths.assign(numbers, numbers + inputs);
    return concat_plan(p, aligned != 0);
  });
}

// `numbers`: the rank and dims of x, the leading pads, the trailing pads.
EXPORT Plan* graphopt_pad_plan(const DeviceFacts*, int64_t bytes, int32_t mode, uint64_t value,
                               const int64_t* numbers) {
  return guarded([&] {
    PadProblem p;
    p.bytes = bytes;
    p.mode = static_cast<PadMode>(mode);
    p.value = value;
    p.x = read_shape(numbers);
    const auto rank = static_cast<ptrdiff_t>(p.x.rank());
    p.before.assign(numbers, numbers + rank);
    p.after.assign(numbers + rank, numbers + 2 * rank);
    return pad_plan(p, true);
  });
}

EXPORT Plan* graphopt_gather_plan(const DeviceFacts*, int64_t bytes, int narrow, int64_t outer, int64_t size,
                                  int64_t inner, int64_t indices) {
  return guarded([&] { return gather_plan({outer, size, inner, indices, bytes, narrow != 0}, true); });
}

// `numbers`: the rank and dims of x and of the indices, and the axis.
EXPORT Plan* graphopt_gather_elements_plan(const DeviceFacts*, int64_t bytes, int narrow,
                                           const int64_t* numbers) {
  return guarded([&] {
    GatherElementsProblem p;
    p.x = read_shape(numbers);
    p.index = read_shape(numbers);
    p.axis = static_cast<size_t>(*numbers);
    p.bytes = bytes;
    p.narrow = narrow != 0;
    return gather_elements_plan(p);
  });
}

// `numbers`: batch, rows, inner, then the indexed sizes as a rank and dims.
EXPORT Plan* graphopt_gather_nd_plan(const DeviceFacts*, int64_t bytes, const int64_t* numbers) {
  return guarded([&] {
    GatherNDProblem p;
    p.batch = *numbers++;
    p.rows = *numbers++;
    p.inner = *numbers++;
    const Shape sizes = read_shape(numbers);
    p.sizes.assign(sizes.data(), sizes.data() + sizes.rank());
    p.bytes = bytes;
    return gather_nd_plan(p, true);
  });
}

// `numbers`: the sizes and the shape of the indices, each as a rank and dims, then inner and the axis, or -1
// for ScatterND.
EXPORT Plan* graphopt_scatter_plan(const DeviceFacts*, int32_t type, int64_t bytes, int narrow, int32_t how,
                                   const int64_t* numbers) {
  return guarded([&] {
    ScatterProblem p;
    p.sizes = read_shape(numbers);
    p.indices = read_shape(numbers);
    p.inner = numbers[0];
    p.elements = numbers[1] >= 0;
    if (p.elements) p.axis = static_cast<size_t>(numbers[1]);
    p.type = static_cast<ElementType>(type);
    p.bytes = bytes;
    p.narrow = narrow != 0;
    p.reduction = static_cast<ScatterReduction>(how);
    return scatter_plan(p, true);
  });
}

EXPORT Plan* graphopt_cumsum_plan(const DeviceFacts* device, int32_t type, int64_t outer, int64_t size,
                                  int64_t inner, int reverse, int exclusive) {
  return guarded([&] {
    return cumsum_plan({outer, size, inner, reverse != 0, exclusive != 0, static_cast<ElementType>(type)},
                       *device);
  });
}

EXPORT Plan* graphopt_cast_plan(const DeviceFacts*, int64_t total, int32_t from, int32_t to, int aligned) {
  return guarded([&] {
    return cast_plan(total, static_cast<ElementType>(from), static_cast<ElementType>(to), aligned != 0);
  });
}

EXPORT Plan* graphopt_softmax_plan(const DeviceFacts* device, int half, int64_t outer, int64_t D,
                                   int64_t inner, int32_t what) {
  return guarded([&] {
    return softmax_plan(outer, D, inner, static_cast<AxisFunction>(what), half != 0, true, *device);
  });
}

EXPORT Plan* graphopt_top_k_plan(const DeviceFacts*, int64_t outer, int64_t R, int64_t inner, int64_t K,
                                 int32_t order, int smallest) {
  return guarded(
      [&] { return top_k_plan({outer, R, inner, K, static_cast<Ordered>(order), smallest != 0}); });
}

EXPORT Plan* graphopt_arg_plan(const DeviceFacts*, int64_t outer, int64_t R, int64_t inner, int32_t order,
                               int smallest, int last) {
  return guarded(
      [&] { return arg_plan({outer, R, inner, static_cast<Ordered>(order), smallest != 0, last != 0}); });
}

// `numbers`: the rank and dims of x, then for each axis whether it is reduced.
EXPORT Plan* graphopt_reduce_plan(const DeviceFacts*, int32_t type, int32_t how, const int64_t* numbers) {
  return guarded([&] {
    ReduceProblem p;
    p.x = read_shape(numbers);
    for (size_t d = 0; d < p.x.rank(); ++d) p.reduced.push_back(numbers[d] != 0);
    p.reduction = static_cast<Reduction>(how);
    p.type = static_cast<ElementType>(type);
    return reduce_plan(p, true);
  });
}

// `numbers`: planes, then for each axis its size in Y and the members of PoolAxis.
// `channels`: number of channels in channels-last layout; 0 if channels are planes.
EXPORT Plan* graphopt_pool_plan(const DeviceFacts*, int32_t type, int32_t mode, const int64_t* numbers,
                                int64_t channels) {
  return guarded([&] {
    PoolProblem p;
    p.planes = *numbers++;
    p.mode = static_cast<PoolMode>(mode);
    const auto next = [&numbers] { return static_cast<int32_t>(*numbers++); };
    for (size_t d = 0; d < kSpatialAxes; ++d) {
      p.out[d] = *numbers++;
      p.axes[d] = {next(), next(), next(), next(), next(), next()};
    }
    return channels == 0 ? pool_plan(p, static_cast<ElementType>(type), true)
                         : pool_channels_last_plan(p, static_cast<ElementType>(type), channels, true);
  });
}

EXPORT Plan* graphopt_lrn_plan(const DeviceFacts*, int half, int64_t images, int64_t channels, int64_t inner,
                               int64_t size, float alpha, float beta, float bias) {
  return guarded(
      [&] { return lrn_plan({images, channels, inner, size, alpha, beta, bias}, half != 0, true); });
}

// `sizes`: planes, H, W, OH, OW. `channels`: number of channels in channels-last layout; 0 if channels are
// planes. A work-item then computes `rows_each` rows, or 0 for the plan's choice.
EXPORT Plan* graphopt_resize_plan(const DeviceFacts*, int half, int32_t coordinates, int32_t how,
                                  const int64_t* sizes, float scale_h, float scale_w, int64_t channels,
                                  int64_t rows_each) {
  return guarded([&] {
    const auto at = [sizes](int i) { return static_cast<int32_t>(sizes[i]); };
    const ResizeProblem p = {sizes[0],
                             {at(1), at(3), scale_h, 0.0f, 1.0f},
                             {at(2), at(4), scale_w, 0.0f, 1.0f},
                             static_cast<Coordinates>(coordinates),
                             static_cast<Interpolation>(how)};
    if (channels != 0) return resize_channels_last_plan(p, channels, true);
    return resize_plan(p, half != 0, true, rows_each > 0 ? std::optional(rows_each) : std::nullopt);
  });
}

// `numbers`: outer, in, out, inner, the bytes of an element, then whether X and Y are float16. `first` and
// `last`: the ends of the crop; `outside`: the bits of an element outside of X.
EXPORT Plan* graphopt_resize_one_plan(const DeviceFacts*, int32_t coordinates, int32_t how,
                                      const int64_t* numbers, float scale, float first, float last,
                                      uint64_t outside, int antialias, int inside_only) {
  return guarded([&] {
    ResizeOneProblem p;
    p.outer = numbers[0];
    p.inner = numbers[3];
    p.axis = {static_cast<int32_t>(numbers[1]), static_cast<int32_t>(numbers[2]), scale, first, last};
    p.coordinates = static_cast<Coordinates>(coordinates);
    p.mode = static_cast<Interpolation>(how);
    p.antialias = antialias != 0;
    p.inside_only = inside_only != 0;
    p.outside = outside;
    p.bytes = numbers[4];
    p.half_in = numbers[5] != 0;
    p.half_out = numbers[6] != 0;
    return resize_one_plan(p);
  });
}

// `numbers`: N, C, the points of an image, then the spatial sizes of x as a rank and dims.
EXPORT Plan* graphopt_grid_sample_plan(const DeviceFacts*, int half, const int64_t* numbers, int taps,
                                       int32_t padding, int corners) {
  return guarded([&] {
    GridSampleProblem p;
    p.N = *numbers++;
    p.C = *numbers++;
    p.points = *numbers++;
    const Shape sizes = read_shape(numbers);
    p.sizes.assign(sizes.data(), sizes.data() + sizes.rank());
    p.taps = taps;
    p.padding = static_cast<GridPadding>(padding);
    p.corners = corners != 0;
    return grid_sample_plan(p, half != 0);
  });
}

// `numbers`: D, B, S, H, backward, batch first, then whether bias, peepholes, lengths, h and c are detected.
// `at_once`: 1 for one launch for all steps, 0 for one launch for each step, negative for the plan's choice.
EXPORT Plan* graphopt_recurrent_plan(const DeviceFacts* device, int half, int32_t kind,
                                     const int64_t* numbers, float clip, int at_once) {
  return guarded([&] {
    RecurrentProblem p;
    p.kind = static_cast<RecurrentKind>(kind);
    p.D = numbers[0];
    p.B = numbers[1];
    p.S = numbers[2];
    p.H = numbers[3];
    p.backward = numbers[4] != 0;
    p.batch_first = numbers[5] != 0;
    p.bias = numbers[6] != 0;
    p.peepholes = numbers[7] != 0;
    p.lengths = numbers[8] != 0;
    p.h = numbers[9] != 0;
    p.c = numbers[10] != 0;
    p.clip = clip;
    return recurrent_plan(p, half != 0, *device, at_once < 0 ? std::nullopt : std::optional(at_once != 0));
  });
}

// `numbers`: lines, per, N, L, K, then the layout of lines in x and in y.
EXPORT Plan* graphopt_dft_plan(const DeviceFacts*, int half, const int64_t* numbers, int complex, int inverse,
                               int window) {
  return guarded([&] {
    DftProblem p;
    p.lines = numbers[0];
    p.per = numbers[1];
    p.N = numbers[2];
    p.L = numbers[3];
    p.K = numbers[4];
    p.from = {numbers[5], numbers[6], numbers[7]};
    p.to = {numbers[8], numbers[9], numbers[10]};
    p.complex = complex != 0;
    p.inverse = inverse != 0;
    p.window = window != 0;
    return dft_plan(p, half != 0);
  });
}

// `numbers`: B, C, N and the maximum number of boxes for a class.
EXPORT Plan* graphopt_nms_plan(const DeviceFacts*, const int64_t* numbers, int centered, float overlap,
                               float score, int has_score) {
  return guarded([&] {
    NmsProblem p = {numbers[0], numbers[1], numbers[2], numbers[3], centered != 0, overlap, std::nullopt};
    if (has_score != 0) p.score_threshold = score;
    return nms_plan(p);
  });
}

EXPORT Plan* graphopt_transpose_planes_plan(const DeviceFacts*, int64_t batch, int64_t rows, int64_t columns,
                                            int64_t bytes) {
  return guarded([&] { return transpose_planes_plan(batch, rows, columns, bytes, true); });
}

// `numbers`: N, channels, H, W, OH, OW, then kernel, stride, dilation and pad of both axes.
EXPORT Plan* graphopt_depthwise_plan(const DeviceFacts* device, const int64_t* numbers, int residual,
                                     int32_t kind, float a, float b, int wants_long) {
  return guarded([&] {
    ConvolutionProblem p;
    p.channels_last = true;
    p.N = numbers[0];
    p.groups = numbers[1];
    for (size_t d = 0; d < 2; ++d) {
      p.in[1 + d] = numbers[2 + d];
      p.out[1 + d] = numbers[4 + d];
      p.kernel[1 + d] = numbers[6 + d];
      p.stride[1 + d] = numbers[8 + d];
      p.dilation[1 + d] = numbers[10 + d];
      p.pad[1 + d] = numbers[12 + d];
    }
    p.has_residual = residual != 0;
    p.act = activation(kind, a, b);
    return depthwise_plan(p, *device, wants_long != 0);
  });
}

// `batches`: rank and dims of A's and of B's batch axes. `tile`: -1 for the plan's choice.
EXPORT Plan* graphopt_gemm_plan(const DeviceFacts* device, int half, int64_t M, int64_t N, int64_t K,
                                int transpose_a, int transpose_b, float alpha, float beta, int bias,
                                int64_t bias_step, int residual, int32_t kind, float a, float b,
                                const int64_t* batches, int aligned, int32_t tile) {
  return guarded([&] {
    GemmProblem p;
    p.M = M;
    p.N = N;
    p.K = K;
    p.transpose_a = transpose_a != 0;
    p.transpose_b = transpose_b != 0;
    p.alpha = alpha;
    p.beta = beta;
    p.has_bias = bias != 0;
    p.bias_step = bias_step;
    p.has_residual = residual != 0;
    p.act = activation(kind, a, b);
    const Shape a_shape = read_shape(batches), b_shape = read_shape(batches);
    p.batch = broadcast_shape(a_shape, b_shape);
    p.a_batch = broadcast(a_shape, p.batch);
    p.b_batch = broadcast(b_shape, p.batch);
    for (int64_t& s : p.a_batch) s *= M * K;
    for (int64_t& s : p.b_batch) s *= K * N;
    return gemm_plan(p, half != 0, aligned != 0, *device, gemm_tile(tile));
  });
}

// `numbers`: N, groups, C, H, W, M, OH, OW, then kernel, stride, dilation and pad of both axes.
EXPORT Plan* graphopt_conv_plan(const DeviceFacts* device, int half, int bias, const int64_t* numbers,
                                int32_t tile) {
  return guarded([&] {
    ConvolutionProblem p;
    p.N = numbers[0];
    p.groups = numbers[1];
    p.C = numbers[2];
    p.M = numbers[5];
    for (int i = 0; i < 2; ++i) {
      p.in[1 + i] = numbers[3 + i];
      p.out[1 + i] = numbers[6 + i];
      p.kernel[1 + i] = numbers[8 + i];
      p.stride[1 + i] = numbers[10 + i];
      p.dilation[1 + i] = numbers[12 + i];
      p.pad[1 + i] = numbers[14 + i];
    }
    p.has_bias = bias != 0;
    return conv_plan(p, half != 0, true, *device, gemm_tile(tile));
  });
}

// `numbers`: N, groups, C, M, then for each axis in, out, kernel, stride, dilation and pad.
EXPORT Plan* graphopt_convolution_plan(const DeviceFacts*, int half, int transposed, int bias,
                                       const int64_t* numbers) {
  return guarded([&] {
    ConvolutionProblem p = read_convolution(numbers);
    p.transposed = transposed != 0;
    p.has_bias = bias != 0;
    return convolution_plan(p, half != 0);
  });
}

EXPORT Plan* graphopt_few_channels_plan(const DeviceFacts* device, int half, int bias, const int64_t* numbers,
                                        int wants_vectors) {
  return guarded([&] {
    ConvolutionProblem p = read_convolution(numbers);
    p.has_bias = bias != 0;
    return few_channels_plan(p, half != 0, true, *device, wants_vectors != 0);
  });
}

// `has`: zero points of the left and of the right operand (0: none, 1: one, 2: one for each line), a bias and
// its strides.
EXPORT Plan* graphopt_integer_matmul_plan(const DeviceFacts*, int32_t left, int32_t right, const int64_t* has,
                                          const int64_t* numbers) {
  return guarded([&] {
    GemmProblem p;
    for (int64_t* member : {&p.M, &p.N, &p.K}) *member = *numbers++;
    p.transpose_a = *numbers++ != 0;
    p.transpose_b = *numbers++ != 0;
    const Shape a_shape = read_shape(numbers), b_shape = read_shape(numbers);
    p.batch = broadcast_shape(a_shape, b_shape);
    p.a_batch = broadcast(a_shape, p.batch);
    p.b_batch = broadcast(b_shape, p.batch);
    for (int64_t& step : p.a_batch) step *= p.M * p.K;
    for (int64_t& step : p.b_batch) step *= p.K * p.N;
    return integer_matmul_plan(p, integers(left, right, has));
  });
}

// `numbers`: as for graphopt_convolution_plan.
EXPORT Plan* graphopt_integer_window_plan(const DeviceFacts*, int32_t left, int32_t right, const int64_t* has,
                                          const int64_t* numbers) {
  return guarded([&] { return integer_window_plan(read_convolution(numbers), integers(left, right, has)); });
}

// `numbers`: matrices, lines, K, taps, whether lines are columns and elements signed.
EXPORT Plan* graphopt_integer_lines_plan(const DeviceFacts*, const int64_t* numbers) {
  return guarded([&] {
    IntegerLines p;
    for (int64_t* member : {&p.matrices, &p.lines, &p.K, &p.taps}) *member = *numbers++;
    for (bool* member : {&p.transposed, &p.is_signed}) *member = *numbers++ != 0;
    return integer_lines_plan(p);
  });
}

namespace {

// `numbers`: matrices, columns, K, types of L, R and Y, kinds of the zero points of L and R, whether there are scales, a
// scale for each column, a bias, a bias for each column, and a zero point of Y.
IntegerColumnsProblem read_integer_columns(const int64_t* numbers, const float* floats) {
  IntegerColumnsProblem p;
  for (int64_t* member : {&p.matrices, &p.columns, &p.K}) *member = *numbers++;
  for (ElementType* member : {&p.left, &p.right, &p.y}) *member = static_cast<ElementType>(*numbers++);
  for (ZeroPoint* member : {&p.left_zero, &p.right_zero}) {
    *member = {*numbers != 0, *numbers == 2};
    ++numbers;
  }
  for (bool* member : {&p.has_scales, &p.right_scales, &p.has_bias, &p.many_biases, &p.has_y_zero}) {
    *member = *numbers++ != 0;
  }
  p.float_bias = p.y == ElementType::kFloat;
  p.alpha = floats[0];
  p.act = activation(static_cast<int32_t>(*numbers), floats[1], floats[2]);
  p.has_table = floats[3] != 0;
  p.sum = {static_cast<hip::IntegerResidual>(static_cast<int32_t>(floats[4])), floats[5], floats[6],
           floats[7], floats[8]};
  return p;
}

}  // namespace

// `floats`: alpha, two parameters of the activation, whether there is a table, and the members of IntegerSum.
EXPORT Plan* graphopt_integer_columns_plan(const DeviceFacts*, const int64_t* numbers, const float* floats) {
  return guarded([&] { return integer_columns_plan(read_integer_columns(numbers, floats)); });
}

// `numbers`: M, N, K, batches of L and R. `columns`: `numbers` of graphopt_integer_columns_plan.
EXPORT Plan* graphopt_integer_gemm_plan(const DeviceFacts* device, const int64_t* numbers,
                                        const int64_t* columns, const float* floats, int row_sums,
                                        int unsigned_left, int32_t tile) {
  return guarded([&] {
    GemmProblem p;
    for (int64_t* member : {&p.M, &p.N, &p.K}) *member = *numbers++;
    const Shape a_shape = read_shape(numbers), b_shape = read_shape(numbers);
    p.batch = broadcast_shape(a_shape, b_shape);
    p.a_batch = broadcast(a_shape, p.batch);
    p.b_batch = broadcast(b_shape, p.batch);
    return integer_gemm_plan(p, read_integer_columns(columns, floats), row_sums != 0, unsigned_left != 0,
                             *device, gemm_tile(tile));
  });
}

// `numbers`: as for graphopt_convolution_plan.
EXPORT Plan* graphopt_integer_blocks_plan(const DeviceFacts*, const int64_t* numbers, int32_t channels_last) {
  return guarded([&] { return integer_blocks_plan(read_convolution(numbers), channels_last != 0); });
}

// `numbers`: as for graphopt_convolution_plan. `columns`: as for graphopt_integer_gemm_plan. `tile`: -2 selects the
// direct kernel.
EXPORT Plan* graphopt_integer_conv_plan(const DeviceFacts* device, const int64_t* numbers,
                                        const int64_t* columns, const float* floats, int32_t tile) {
  return guarded([&] {
    const ConvolutionProblem p = read_convolution(numbers);
    const IntegerColumnsProblem of_columns = read_integer_columns(columns, floats);
    if (refuse_integer_depthwise(p) == nullptr) return integer_depthwise_plan(p, of_columns);
    if (tile < -1) return integer_conv_direct_plan(p, of_columns, *device);
    return integer_conv_plan(p, of_columns, *device, gemm_tile(tile));
  });
}

// `numbers`: outer, M, N, whether there is a scale for each row and for each column, a bias, the type of Y (0
// for float) and whether Y has a zero point.
EXPORT Plan* graphopt_scale_sums_plan(const DeviceFacts*, const int64_t* numbers, float alpha) {
  return guarded([&] {
    ScaleProblem p;
    for (int64_t* member : {&p.outer, &p.M, &p.N}) *member = *numbers++;
    for (bool* member : {&p.left_many, &p.right_many, &p.has_bias}) *member = *numbers++ != 0;
    if (*numbers != 0) p.quantized = static_cast<ElementType>(*numbers);
    p.has_zero = numbers[1] != 0;
    p.alpha = alpha;
    return scale_sums_plan(p);
  });
}

EXPORT Plan* graphopt_dynamic_scale_plan(const DeviceFacts*) {
  return guarded([&] { return dynamic_scale_plan(); });
}

// `numbers`: N, C, M, then for both axes in, out, kernel, stride, dilation and pad. `has`: a bias, a
// residual. `halo`: uses the kernels that share pixels between taps, if the device has them.
EXPORT Plan* graphopt_channels_last_conv_plan(const DeviceFacts* device, int transposed,
                                              const int64_t* numbers, const int* has, int32_t kind, float a,
                                              float b, int32_t tile, int halo) {
  return guarded([&] {
    ConvolutionProblem p;
    p.transposed = transposed != 0;
    p.channels_last = true;
    for (int64_t* member : {&p.N, &p.C, &p.M}) *member = *numbers++;
    for (size_t d = 1; d < kSpatialAxes; ++d) {
      for (auto* axes : {&p.in, &p.out, &p.kernel, &p.stride, &p.dilation, &p.pad}) (*axes)[d] = *numbers++;
    }
    p.has_bias = has[0] != 0;
    p.has_residual = has[1] != 0;
    p.act = activation(kind, a, b);
    if (const char* why = refuse_channels_last_conv(p, *device)) throw std::invalid_argument(why);
    const bool shares = halo != 0 && refuse_conv_halo(p, *device) == nullptr;
    return (shares ? conv_halo_plan : channels_last_conv_plan)(p, *device, gemm_tile(tile));
  });
}

// Plans of gemm/instruction.hip. kind: 0 product, 1 chain, 2 rows.
EXPORT Plan* graphopt_tile_plan(const DeviceFacts* device, int half, int kind, int32_t M, int32_t N,
                                int32_t K, int32_t P) {
  return guarded([&] {
    const char* names[3][2] = {{"tile_product_f32", "tile_product_f16"},
                               {"tile_chain_f32", "tile_chain_f16"},
                               {"tile_rows_f32", "tile_rows_f16"}};
    const uint32_t down = to_u31(divide_up(M, 16));
    const uint32_t across = kind == 2 ? down : to_u31(divide_up(kind == 1 ? P : N, 16));
    const Grid grid = {across, kind == 2 ? 1 : down};
    const auto threads = static_cast<uint32_t>(device->wave);
    Plan plan;
    if (kind == 1) {
      hip::TileChainArgs args = {};
      args.a = input(0);
      args.b = input(1);
      args.c = input(2);
      args.y = output(0);
      args.M = M;
      args.N = N;
      args.K = K;
      args.P = P;
      plan.launch(names[kind][half], grid, threads, args);
    } else {
      hip::TileArgs args = {};
      args.a = input(0);
      args.b = input(1);
      args.y = output(0);
      args.M = M;
      args.N = N;
      args.K = K;
      plan.launch(names[kind][half], grid, threads, args);
    }
    return plan;
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
