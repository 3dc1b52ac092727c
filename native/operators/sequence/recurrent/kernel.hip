// LSTM, GRU and RNN: the recurrence after the GEMM of all inputs. recurrent_step_* multiplies the states of one or a
// few sequences by the recurrence weights. It is launched for each step: a wave computes the gates of one hidden unit
// for several sequences, and then updates the unit. With few units, persistent.hip computes all steps in one launch.
// Bound by the time of a launch and by reads of r from the caches.
// Hochreiter, Schmidhuber, "Long short-term memory", 1997; Cho et al., arXiv:1406.1078.
#include "operators/sequence/recurrent/unit.h"

namespace graphopt::hip {

// Sums each of kCount values over a wave. Work-item i returns the sum of value i / (wave size / kCount).
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

// Multiplies `count` rows of r, which are H H elements apart, by the states h [sequences, H]. Adds the products of this
// work-item's elements to v. kWide: reads packs, and H is a multiple of a pack. An iteration issues all its loads
// before it waits for the first one. In float16 with kWide, it first issues the loads of the weights and of half of the
// states.
template <class T, bool kWide>
DEVICE void multiply_states(const T* r, const float* h, int H, int sequences, int count, float* v) {
  constexpr int kSize = kWide ? Pack<T>::kSize : 1, kStates = kWide ? Pack<float>::kSize : 1;
  struct Weights {
    T v[kSize];
  };
  const size_t gate = static_cast<size_t>(H) * static_cast<size_t>(H);
  NO_UNROLL for (int k = lane_id() * kSize; k < H; k += kWave * kSize) {
    Weights weight[kMaxGates] = {};
    UNROLL for (int g = 0; g < kMaxGates; ++g) {
      if (g >= count) continue;
      const T* const from = r + static_cast<size_t>(g) * gate + static_cast<size_t>(k);
      if constexpr (kWide) {
        weight[g] = bit_cast<Weights>(load_pack(from));
      } else {
        weight[g].v[0] = *from;
      }
    }
    UNROLL for (int part = 0; part < kSize; part += kStates) {
      float x[kStepSequences][kStates] = {};
      UNROLL for (int c = 0; c < kStepSequences; ++c) {
        if (c >= sequences) continue;
        const float* const from = h + c * H + k + part;
        if constexpr (kWide) {
          const Pack<float> pack = load_pack(from);
          UNROLL for (int e = 0; e < kStates; ++e) x[c][e] = pack.v[e];
        } else {
          x[c][0] = *from;
        }
      }
      keep_order();
      UNROLL for (int c = 0; c < kStepSequences; ++c) {
        UNROLL for (int g = 0; g < kMaxGates; ++g) {
          UNROLL for (int e = 0; e < kStates; ++e) {
            v[c * kMaxGates + g] += to_float(weight[g].v[part + e]) * x[c][e];
          }
        }
      }
    }
  }
}

// Computes the gates of hidden unit j in step args.step and updates the unit.
template <class T>
DEVICE void recurrent_unit(const RecurrentArgs& args, const RecurrentSequences& group,
                           const RecurrentState& state, int j) {
  constexpr int kSums = kStepSequences * kMaxGates;
  const bool reset = args.kind == RecurrentKind::kGruReset, second = args.second != 0;
  // opaque() keeps values that depend on H in vector registers, because gfx90a has too few scalar registers.
  const int H = opaque(args.H), gates = gates_of(args.kind);
  const int first = opaque(second ? 2 : 0), count = reset ? (second ? 1 : 2) : gates;
  // A work-item that updates the unit does so for one sequence.
  const int sequence = lane_id() % kStepSequences;
  const bool updates = lane_id() < group.count;
  const int b = group.first + (updates ? sequence : 0);
  const SequencePosition position = sequence_position(args, group.direction, b, args.step);
  const size_t all = static_cast<size_t>(gates) * static_cast<size_t>(H),
               d = static_cast<size_t>(group.direction), unit = static_cast<size_t>(first * H + j);
  const T* const projection = recurrent_input<T>(args, group.direction, b, position.time, all) + unit;
  // Loads for the update are issued first, so that they complete together with the later loads.
  float in[kMaxGates] = {}, state_bias[kMaxGates] = {}, peephole[3] = {};
  if (updates) {
    read_parameters<T, kMaxGates>(args, d, all, first * H + j, count, H, j, in, state_bias, peephole);
    UNROLL for (int g = 0; g < kMaxGates; ++g) {
      if (g < count) in[g] += to_float(projection[g * H]);
    }
  }
  const T* const r = static_cast<const T*>(args.r) + (d * all + unit) * static_cast<size_t>(H);
  const float* const h = second ? state.auxiliary : state.current;
  float v[kSums] = {};
  if (H % Pack<T>::kSize == 0) {
    multiply_states<T, true>(r, h, H, group.count, count, v);
  } else {
    multiply_states<T, false>(r, h, H, group.count, count, v);
  }
  const float mine = fold<kSums>(v, kWave / 2);
  float sum[kMaxGates];
  UNROLL for (int g = 0; g < kMaxGates; ++g) {
    sum[g] = shuffle(mine, (sequence * kMaxGates + g) * (kWave / kSums)) + state_bias[g];
  }
  if (!updates) return;

  const int at = sequence * H + j;
  const float after = update_unit(args, state, position.active, at, in, sum, peephole, second);
  if (reset && !second) return;
  state.next[at] = position.active ? after : state.current[at];
  write_unit<T>(args, group.direction, b, position, j, after);
}

template <class T>
DEVICE void recurrent_step(const RecurrentArgs& args) {
  const int first = block_y() * kStepSequences;
  const RecurrentSequences group = {block_z(), first, min_int(kStepSequences, args.B - first)};
  const int odd = args.step & 1;
  const RecurrentState state = {state_of(args, group, odd), state_of(args, group, 1 - odd),
                                state_of(args, group, 2), state_of(args, group, 3)};
  const int j = block_x() * (kStepThreads / kWave) + same_in_wave(wave_id());
  if (j < args.H) recurrent_unit<T>(args, group, state, j);
}

// Returns the offset in the tensor of element i of the state.
DEVICE size_t tensor_offset(const RecurrentStateArgs& args, uint32_t i) {
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
      from != nullptr ? to_float(from[tensor_offset(args, i)]) : 0.0f;
}

template <class T>
DEVICE void recurrent_store(const RecurrentStateArgs& args) {
  const uint32_t i = work_item(kStateThreads);
  if (i >= args.total) return;
  T* const to = args.to;
  if (to == nullptr) return;
  to[tensor_offset(args, i)] = from_float<T>(static_cast<const float*>(args.from)[args.state + i]);
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(recurrent_step, recurrent_step<T>, kStepThreads, RecurrentArgs, projection, r, bias, peepholes,
              lengths, state, y)
FLOAT_KERNELS(recurrent_load, recurrent_load<T>, kStateThreads, RecurrentStateArgs, from, to)
FLOAT_KERNELS(recurrent_store, recurrent_store<T>, kStateThreads, RecurrentStateArgs, from, to)
