// LSTM, GRU and RNN: what follows the product of all inputs. The product of a state and the recurrence weights
// is that of a vector, or a few, and a matrix; a wave takes the gates of one hidden unit at a time, for several
// sequences at once, and then ends the unit.
//
// recurrent_all_* is one launch for all steps: a work-group has a direction and some sequences, and h in LDS. It
// is for few units, whose weights a compute unit reads fast enough by itself; else recurrent_step_* is launched
// for each step, and waves of all compute units share the units. Bound by the time of a launch, and by reading r
// from the caches.
// Hochreiter, Schmidhuber, "Long short-term memory", 1997; Cho et al., arXiv:1406.1078.
#include "blocks/gpu/activation.h"
#include "device/platform.h"
#include "operators/recurrent/args.h"

namespace graphopt::hip {

// Sums of kCount values over a wave. Lane i has that of value i / (lanes / kCount) then.
template <int kCount>
DEVICE float fold(float* v, int mask) {
  if constexpr (kCount == 1) {
    float sum = v[0];
    for (; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    return sum;
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane_id() & mask) != 0;
    UNROLL for (int i = 0; i < kHalf; ++i) {
      const float low = v[i], high = v[i + kHalf];
      v[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, mask);
    }
    return fold<kHalf>(v, mask / 2);
  }
}

// What a work-group works on: a direction, and the sequences from `first` on.
struct RecurrentPart {
  int direction, first, cells;  // cells: how many sequences there are
};

// Where the states of these sequences lie, H floats each. `more`: c, or reset gate times h; `update`: the
// update gate of kGruReset.
struct RecurrentState {
  const float* now;
  float *next, *more, *update;
};

// What of a unit's gates a lane works on: the sums of its sequence, where it ends one.
struct RecurrentLane {
  int cell, b, time;  // the sequence in the work-group and in all, and the element of it that the step reads
  bool ends, active;
};

template <int kCells>
DEVICE RecurrentLane recurrent_lane(const RecurrentArgs& args, const RecurrentPart& part, int s) {
  RecurrentLane lane = {};
  lane.cell = lane_id() % kCells;
  lane.ends = lane_id() < part.cells;
  lane.b = part.first + (lane.ends ? lane.cell : 0);
  int length = args.S;
  const int32_t* const lengths = args.lengths;
  if (lengths != nullptr) length = max_int(0, min_int(lengths[lane.b], args.S));
  lane.active = s < length;
  lane.time = lane.active && part.direction >= args.backward ? length - 1 - s : s;
  return lane;
}

// Adds the products of rows of r, H H apart, and of the states h [cells, H], of the elements that a lane has.
// kWide: in packs, for which H is a multiple of a pack. All of a step is asked for before the first is waited for.
template <class T, int kCells, bool kWide>
DEVICE void recurrent_products(const T* r, const float* h, int H, int cells, int count, float* v) {
  constexpr int kSize = kWide ? Pack<T>::kSize : 1, kStates = kWide ? Pack<float>::kSize : 1;
  struct Weights {
    T v[kSize];
  };
  const size_t gate = static_cast<size_t>(H) * static_cast<size_t>(H);
  NO_UNROLL for (int k = lane_id() * kSize; k < H; k += kWave * kSize) {
    Weights weight[kMostGates] = {};
    UNROLL for (int g = 0; g < kMostGates; ++g) {
      if (g >= count) continue;
      const T* const from = r + static_cast<size_t>(g) * gate + static_cast<size_t>(k);
      if constexpr (kWide) {
        weight[g] = bit_cast<Weights>(load_pack(from));
      } else {
        weight[g].v[0] = *from;
      }
    }
    UNROLL for (int part = 0; part < kSize; part += kStates) {
      float x[kCells][kStates] = {};
      UNROLL for (int c = 0; c < kCells; ++c) {
        if (c >= cells) continue;
        const float* const from = h + c * H + k + part;
        if constexpr (kWide) {
          const Pack<float> pack = load_pack(from);
          UNROLL for (int e = 0; e < kStates; ++e) x[c][e] = pack.v[e];
        } else {
          x[c][0] = *from;
        }
      }
      keep_order();
      UNROLL for (int c = 0; c < kCells; ++c) {
        UNROLL for (int g = 0; g < kMostGates; ++g) {
          UNROLL for (int e = 0; e < kStates; ++e) {
            v[c * kMostGates + g] += to_float(weight[g].v[part + e]) * x[c][e];
          }
        }
      }
    }
  }
}

// What becomes of a unit of a sequence: `in` of the inputs and `sum` of the state before it, both with their
// bias. Of the first product of kGruReset only the gates.
DEVICE float end_unit(const RecurrentArgs& args, const RecurrentState& state, const RecurrentLane& lane,
                      int at, const float* in, const float* sum, const float* peephole, bool second) {
  const auto clipped = [&](float x) {
    if (args.clip == 0) return x;
    x = x < -args.clip ? -args.clip : x;
    return x > args.clip ? args.clip : x;
  };
  const float before = state.now[at];
  if (args.kind == RecurrentKind::kLstm) {
    const float c = state.more[at];
    const float input = sigmoid(clipped(in[0] + sum[0] + peephole[0] * c));
    const float forget = sigmoid(clipped(in[2] + sum[2] + peephole[2] * c));
    const float fresh = forget * c + input * tanh_fast(clipped(in[3] + sum[3]));
    const float output = sigmoid(clipped(in[1] + sum[1] + peephole[1] * fresh));
    if (lane.active) state.more[at] = fresh;
    return output * tanh_fast(fresh);
  }
  if (args.kind == RecurrentKind::kGru) {
    const float update = sigmoid(clipped(in[0] + sum[0])), keep = sigmoid(clipped(in[1] + sum[1]));
    return (1 - update) * tanh_fast(clipped(in[2] + keep * sum[2])) + update * before;
  }
  if (args.kind == RecurrentKind::kRnn) return tanh_fast(clipped(in[0] + sum[0]));
  if (!second) {
    state.update[at] = sigmoid(clipped(in[0] + sum[0]));
    state.more[at] = sigmoid(clipped(in[1] + sum[1])) * before;
    return before;
  }
  const float update = state.update[at];
  return (1 - update) * tanh_fast(clipped(in[0] + sum[0])) + update * before;
}

// The gates of hidden unit j in step s, and what becomes of them.
template <class T, int kCells>
DEVICE void recurrent_unit(const RecurrentArgs& args, const RecurrentPart& part, const RecurrentState& state,
                           int j, int s, bool second) {
  const RecurrentKind kind = args.kind;
  // What depends on H is kept in vector registers: gfx90a has too few scalar ones.
  const int H = opaque(args.H), gates = kind == RecurrentKind::kLstm  ? 4
                                        : kind == RecurrentKind::kRnn ? 1
                                                                      : 3;
  const bool reset = kind == RecurrentKind::kGruReset;
  const int first = opaque(second ? 2 : 0), count = reset ? (second ? 1 : 2) : gates;
  const RecurrentLane lane = recurrent_lane<kCells>(args, part, s);
  const size_t all = static_cast<size_t>(gates) * static_cast<size_t>(H),
               d = static_cast<size_t>(part.direction);
  const size_t row = static_cast<size_t>(lane.time) * static_cast<size_t>(args.row_of_step) +
                     static_cast<size_t>(lane.b) * static_cast<size_t>(args.row_of_cell);
  const size_t unit = static_cast<size_t>(first * H + j);
  const T* const product =
      static_cast<const T*>(args.product) + (row * static_cast<size_t>(args.D) + d) * all + unit;
  const T* const bias = args.bias;
  const T* const peepholes = args.peepholes;
  // What only the end needs is asked for first, so that it comes along with the rest.
  float in[kMostGates] = {}, of_state[kMostGates] = {}, peephole[3] = {};
  if (lane.ends) {
    UNROLL for (int g = 0; g < kMostGates; ++g) {
      if (g >= count) continue;
      in[g] = to_float(product[g * H]);
      if (bias == nullptr) continue;
      in[g] += to_float(bias[2 * d * all + unit + static_cast<size_t>(g * H)]);
      of_state[g] = to_float(bias[(2 * d + 1) * all + unit + static_cast<size_t>(g * H)]);
    }
    if (peepholes != nullptr) {
      UNROLL for (int g = 0; g < 3; ++g) {
        peephole[g] = to_float(
            peepholes[(3 * d + static_cast<size_t>(g)) * static_cast<size_t>(H) + static_cast<size_t>(j)]);
      }
    }
  }
  const T* const r = static_cast<const T*>(args.r) + (d * all + unit) * static_cast<size_t>(H);
  const float* const h = second ? state.more : state.now;
  float v[kCells * kMostGates] = {};
  if (H % Pack<T>::kSize == 0) {
    recurrent_products<T, kCells, true>(r, h, H, part.cells, count, v);
  } else {
    recurrent_products<T, kCells, false>(r, h, H, part.cells, count, v);
  }
  const float mine = fold<kCells * kMostGates>(v, kWave / 2);
  float sum[kMostGates];
  UNROLL for (int g = 0; g < kMostGates; ++g) {
    sum[g] = shuffle(mine, (lane.cell * kMostGates + g) * (kWave / (kCells * kMostGates))) + of_state[g];
  }
  if (!lane.ends) return;

  const int at = lane.cell * H + j;
  const float after = end_unit(args, state, lane, at, in, sum, peephole, second);
  if (reset && !second) return;
  state.next[at] = lane.active ? after : state.now[at];
  T* const y = args.y;
  if (y != nullptr) {
    y[lane.time * args.y_of_step + lane.b * args.y_of_cell + part.direction * args.y_of_direction + j] =
        from_float<T>(lane.active ? after : 0.0f);
  }
}

// Part `which` of the state, of the sequences of a work-group.
DEVICE float* recurrent_part(const RecurrentArgs& args, const RecurrentPart& part, int which) {
  const size_t sequence = static_cast<size_t>(which * args.D + part.direction) * static_cast<size_t>(args.B) +
                          static_cast<size_t>(part.first);
  return static_cast<float*>(args.state) + sequence * static_cast<size_t>(args.H);
}

template <class T>
DEVICE void recurrent_step(const RecurrentArgs& args) {
  const int first = block_y() * kStepCells;
  const RecurrentPart part = {block_z(), first, min_int(kStepCells, args.B - first)};
  const int odd = args.step & 1;
  const RecurrentState state = {recurrent_part(args, part, odd), recurrent_part(args, part, 1 - odd),
                                recurrent_part(args, part, 2), recurrent_part(args, part, 3)};
  const int j = block_x() * (kStepThreads / kWave) + same_in_wave(wave_id());
  if (j < args.H) recurrent_unit<T, kStepCells>(args, part, state, j, args.step, args.second != 0);
}

template <class T>
DEVICE void recurrent_all(const RecurrentArgs& args, float* lds) {
  const int first = opaque(block_x() * kRecurrentCells);
  // What depends on direction, sequence and gate is kept in vector registers: gfx90a has too few scalar ones.
  const RecurrentPart part = {opaque(block_y()), first, min_int(kRecurrentCells, args.B - first)};
  const int own = part.cells * args.H, each = kRecurrentCells * args.H;
  const bool reset = args.kind == RecurrentKind::kGruReset, lstm = args.kind == RecurrentKind::kLstm;
  for (int i = thread_x(); i < own; i += kRecurrentThreads) {
    lds[i] = recurrent_part(args, part, 0)[i];
    if (lstm) lds[2 * each + i] = recurrent_part(args, part, 2)[i];
  }
  barrier();
  NO_UNROLL for (int s = 0; s < args.S; ++s) {
    const int odd = s & 1;
    const RecurrentState state = {lds + odd * each, lds + (1 - odd) * each, lds + 2 * each, lds + 3 * each};
    NO_UNROLL for (int second = 0; second < (reset ? 2 : 1); ++second) {
      NO_UNROLL for (int j = same_in_wave(wave_id()); j < args.H; j += kRecurrentThreads / kWave) {
        recurrent_unit<T, kRecurrentCells>(args, part, state, j, s, second != 0);
      }
      barrier();
    }
  }
  const int odd = args.S & 1;
  for (int i = thread_x(); i < own; i += kRecurrentThreads) {
    recurrent_part(args, part, odd)[i] = lds[odd * each + i];
    if (lstm) recurrent_part(args, part, 2)[i] = lds[2 * each + i];
  }
}

// Of element i of the state in the tensor.
DEVICE size_t recurrent_place(const RecurrentStateArgs& args, uint32_t i) {
  const uint32_t sequence = divide(i, args.H), d = divide(sequence, args.B);
  const uint32_t b = sequence - d * args.B.d, j = i - sequence * args.H.d;
  const uint32_t row = args.batch_first != 0 ? b * static_cast<uint32_t>(args.D) + d : sequence;
  return static_cast<size_t>(row) * args.H.d + j;
}

template <class T>
DEVICE void recurrent_load(const RecurrentStateArgs& args) {
  const uint32_t i = work_item(kStateThreads);
  if (i >= args.total) return;
  const T* const from = args.from;
  static_cast<float*>(args.to)[args.state + i] =
      from != nullptr ? to_float(from[recurrent_place(args, i)]) : 0.0f;
}

template <class T>
DEVICE void recurrent_store(const RecurrentStateArgs& args) {
  const uint32_t i = work_item(kStateThreads);
  if (i >= args.total) return;
  T* const to = args.to;
  if (to == nullptr) return;
  to[recurrent_place(args, i)] = from_float<T>(static_cast<const float*>(args.from)[args.state + i]);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

#define RECURRENT_KERNELS(T, suffix)                                                                        \
  KERNEL(recurrent_step_##suffix, kStepThreads, RecurrentArgs, product, r, bias, peepholes, lengths, state, \
         y) {                                                                                               \
    recurrent_step<T>(args);                                                                                \
  }                                                                                                         \
  KERNEL(recurrent_all_##suffix, kRecurrentThreads, RecurrentArgs, product, r, bias, peepholes, lengths,    \
         state, y) {                                                                                        \
    DYNAMIC_SHARED(float, lds);                                                                             \
    recurrent_all<T>(args, lds);                                                                            \
  }                                                                                                         \
  KERNEL(recurrent_load_##suffix, kStateThreads, RecurrentStateArgs, from, to) { recurrent_load<T>(args); } \
  KERNEL(recurrent_store_##suffix, kStateThreads, RecurrentStateArgs, from, to) { recurrent_store<T>(args); }

RECURRENT_KERNELS(float, f32)
RECURRENT_KERNELS(half_t, f16)
