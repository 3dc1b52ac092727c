// LSTM, GRU and RNN with few hidden units, after the GEMM of all inputs: one launch computes all steps. A work-group
// processes one sequence in one direction. It reads its weights once and keeps them in registers, and in LDS if there
// are too few registers. kLanes adjacent work-items share a hidden unit, and each of them multiplies every kLanes-th
// pack of the states. Bound by the latencies of a step: reads of h from LDS, two or three exchanges between work-items,
// and a barrier.
#include "operators/sequence/recurrent/unit.h"

namespace graphopt::hip {

// Maximum number of packs of weights that a work-item keeps in registers. Its other packs are in LDS.
constexpr int kRegisterPacks = kGcn ? 17 : 19;

template <int kUnits, int kPacks>
struct WeightsLds {
  float h[2][kUnits], auxiliary[kUnits], update[kUnits];
  Pack<float> weights[kPacks > kRegisterPacks ? kPacks - kRegisterPacks : 1][kRecurrentThreads];
};

template <int kGateCount, int kLanes>
struct RecurrentWeights {
  static constexpr int kGates = kGateCount, kUnits = kRecurrentThreads / kLanes;
  static constexpr int kPacks = kUnits / (Pack<float>::kSize * kLanes);  // per gate
  using Lds = WeightsLds<kUnits, kGates * kPacks>;

  Pack<float> in_registers[kRegisterPacks < kGates * kPacks ? kRegisterPacks : kGates * kPacks];
  int unit, slice;

  template <class T>
  DEVICE void read(const RecurrentArgs& args, int direction, Lds& lds) {
    const int H = args.H, gates = gates_of(args.kind);
    const T* const r = args.r;
    UNROLL for (int g = 0; g < kGates; ++g) {
      const T* const row = r + (static_cast<size_t>(direction * gates + g) * static_cast<size_t>(H) +
                                static_cast<size_t>(unit)) *
                                   static_cast<size_t>(H);
      UNROLL for (int i = 0; i < kPacks; ++i) {
        Pack<float> pack = {};
        UNROLL for (int e = 0; e < Pack<float>::kSize; ++e) {
          const int k = place(i) + e;
          if (g < gates && unit < H && k < H) pack.v[e] = to_float(row[k]);
        }
        const int at = g * kPacks + i;
        if (at < kRegisterPacks) {
          in_registers[at] = pack;
        } else {
          lds.weights[at - kRegisterPacks][thread_x()] = pack;
        }
      }
    }
  }

  // Computes the dot products of h and the unit's row of weights for each gate, summed over all work-items of
  // the unit. `sum` must be 0.
  DEVICE void multiply(const float* h, const Lds& lds, float* sum) const {
    UNROLL for (int i = 0; i < kPacks; ++i) {
      const Pack<float> x = load_pack(h + place(i));
      UNROLL for (int g = 0; g < kGates; ++g) {
        const int at = g * kPacks + i;
        const Pack<float> weight = at < kRegisterPacks
                                       ? in_registers[at]
                                       : load_pack(lds.weights[at - kRegisterPacks][thread_x()].v);
        UNROLL for (int e = 0; e < Pack<float>::kSize; ++e) sum[g] += weight.v[e] * x.v[e];
      }
    }
    UNROLL for (int g = 0; g < kGates; ++g) {
      UNROLL for (int mask = kLanes / 2; mask > 0; mask /= 2) sum[g] += shuffle_xor(sum[g], mask);
    }
  }

 private:
  DEVICE int place(int i) const { return Pack<float>::kSize * (i * kLanes + slice); }
};

template <class T, class Weights>
DEVICE void recurrent_persistent(const RecurrentArgs& args) {
  SHARED(lds, typename Weights::Lds);
  constexpr int kGates = Weights::kGates;
  // opaque() keeps values that depend on these in vector registers, because gfx90a has too few scalar
  // registers.
  const int direction = opaque(block_y()), H = opaque(args.H);
  const int b = opaque(block_x()), gates = gates_of(args.kind);
  const bool reset = args.kind == RecurrentKind::kGruReset, lstm = args.kind == RecurrentKind::kLstm;
  Weights weights;
  weights.unit = thread_x() / (kRecurrentThreads / Weights::kUnits);
  weights.slice = thread_x() % (kRecurrentThreads / Weights::kUnits);
  weights.template read<T>(args, direction, lds);
  const int unit = weights.unit;
  const bool updates = unit < H && weights.slice == 0;
  const RecurrentSequences group = {direction, b, 1};
  if (thread_x() < Weights::kUnits) {
    const int j = thread_x();
    lds.h[0][j] = j < H ? state_of(args, group, 0)[j] : 0.0f;
    lds.h[1][j] = 0;
    lds.auxiliary[j] = lstm && j < H ? state_of(args, group, 2)[j] : 0.0f;
  }
  const size_t all = static_cast<size_t>(gates) * static_cast<size_t>(H), d = static_cast<size_t>(direction);
  float input_bias[kGates] = {}, state_bias[kGates] = {}, peephole[3] = {}, next_input[kGates] = {};
  const auto prefetch = [&](int s) {
    const int time = sequence_position(args, direction, b, s).time;
    const T* const projection = recurrent_input<T>(args, direction, b, time, all) + unit;
    UNROLL for (int g = 0; g < kGates; ++g) {
      if (g < gates) next_input[g] = to_float(projection[g * H]);
    }
  };
  if (updates) {
    read_parameters<T, kGates>(args, d, all, unit, gates, H, unit, input_bias, state_bias, peephole);
    if (args.S > 0) prefetch(0);
  }
  barrier();

  NO_UNROLL for (int s = 0; s < args.S; ++s) {
    const RecurrentState state = {lds.h[s & 1], lds.h[1 - (s & 1)], lds.auxiliary, lds.update};
    float in[kMaxGates] = {};
    if (updates) {
      UNROLL for (int g = 0; g < kGates; ++g) in[g] = next_input[g] + input_bias[g];
      if (s + 1 < args.S) prefetch(s + 1);
    }
    NO_UNROLL for (int round = 0; round < (reset ? 2 : 1); ++round) {
      const bool second = round != 0;
      float sum[kMaxGates] = {};
      weights.multiply(second ? state.auxiliary : state.current, lds, sum);
      if (updates) {
        const SequencePosition position = sequence_position(args, direction, b, s);
        UNROLL for (int g = 0; g < kGates; ++g) sum[g] += state_bias[g];
        sum[0] = second ? sum[2] : sum[0];
        in[0] = second ? in[2] : in[0];
        const float after = update_unit(args, state, position.active, unit, in, sum, peephole, second);
        if (!reset || second) {
          state.next[unit] = position.active ? after : state.current[unit];
          // GCN computes the offset in y in each step. Kept during the loop, it would take two registers.
          const auto recomputed = [](int i) { return kGcn ? opaque(i) : i; };
          write_unit<T>(args, recomputed(direction), recomputed(b), position, unit, after);
        }
      }
      barrier();
    }
  }
  if (thread_x() < H) {
    state_of(args, group, args.S & 1)[thread_x()] = lds.h[args.S & 1][thread_x()];
    if (lstm) state_of(args, group, 2)[thread_x()] = lds.auxiliary[thread_x()];
  }
}

}  // namespace graphopt::hip

using namespace graphopt::hip;

FLOAT_KERNELS(recurrent_persistent_64, (recurrent_persistent<T, RecurrentWeights<4, kRecurrentThreads / 64>>),
              kRecurrentThreads, RecurrentArgs, projection, r, bias, peepholes, lengths, state, y)
FLOAT_KERNELS(recurrent_persistent_128,
              (recurrent_persistent<T, RecurrentWeights<3, kRecurrentThreads / 128>>), kRecurrentThreads,
              RecurrentArgs, projection, r, bias, peepholes, lengths, state, y)
