// AMX for machines that have AVX-512 with BF16 but no AMX. AMX instructions raise SIGILL there; the handler
// executes them one by one as Intel's manual defines them (Software Developer's Manual, volume 2), so the
// tests run the library's unchanged code. A machine with AMX runs them natively. Replaces cpu/amx.cpp.
#include "cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#endif

namespace graphopt::cpu {

#if defined(__x86_64__) && defined(__linux__)
namespace {

struct Machine {
  bool configured = false;
  uint8_t rows[8];
  uint16_t row_bytes[8];
  uint8_t tiles[8][16][64];
};
thread_local Machine machine;

[[noreturn]] void refuse(const char* why) {
  const char begin[] = "AMX's stand-in: ";
  (void)!write(2, begin, sizeof begin - 1);
  (void)!write(2, why, strlen(why));
  (void)!write(2, "\n", 1);
  _exit(1);
}

void configure(const uint8_t* memory) {
  if (memory[0] != 1) refuse("a configuration of another palette than 1");
  for (int i = 0; i < 8; ++i) {
    std::memcpy(&machine.row_bytes[i], memory + 16 + 2 * i, 2);
    machine.rows[i] = memory[48 + i];
    if (machine.rows[i] > 16 || machine.row_bytes[i] > 64) refuse("a tile of more than 16 rows of 64 bytes");
  }
  for (int i = 2; i < 64; ++i) {
    if ((i < 16 || (i >= 32 && i < 48) || i >= 56) && memory[i] != 0) refuse("reserved bytes that are not 0");
  }
  std::memset(machine.tiles, 0, sizeof machine.tiles);
  machine.configured = true;
}

// Converts the elements of a tile's rows; those below 2^-126 become zero.
void widen(int tile, int rows, float (&numbers)[16][32]) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < 32; ++j) {
      uint16_t upper;
      std::memcpy(&upper, machine.tiles[tile][i] + 2 * j, 2);
      const uint32_t bits = (upper & 0x7f80u) == 0 ? 0u : uint32_t{upper} << 16;
      std::memcpy(&numbers[i][j], &bits, 4);
    }
  }
}

// The two products of a step are added one after the other.
void multiply(int to, int rows, int columns) {
  if (machine.row_bytes[rows] != 4 * machine.rows[columns]) refuse("tiles that do not fit");
  float a[16][32], b[16][32], sums[16];
  widen(rows, machine.rows[to], a);
  widen(columns, machine.rows[columns], b);
  for (int m = 0; m < machine.rows[to]; ++m) {
    std::memcpy(sums, machine.tiles[to][m], sizeof sums);
    for (int k = 0; k < machine.rows[columns]; ++k) {
      for (int n = 0; n < 16; ++n) {
        sums[n] += a[m][2 * k] * b[k][2 * n];
        sums[n] += a[m][2 * k + 1] * b[k][2 * n + 1];
      }
    }
    std::memcpy(machine.tiles[to][m], sums, machine.row_bytes[to]);
  }
}

// Returns a register of the program by its number in an instruction.
uint64_t register_of(const ucontext_t& context, int number) {
  constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                             REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(context.uc_mcontext.gregs[kPlaces[number]]);
}

// A VEX instruction with a three-byte prefix, and its decoded operands.
struct Instruction {
  const uint8_t* code;
  int length = 5;
  bool in_registers;
  uint8_t *memory = nullptr, kind, opcode;
  uint64_t row = 0;  // row stride in bytes, from the index register
  int reg, rm, vvvv;

  Instruction(const uint8_t* at, const ucontext_t& context) : code(at) {
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) refuse("an unknown instruction");
    const int r = code[1] & 0x80 ? 0 : 8, x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
    kind = code[2] & 3;
    opcode = code[3];
    vvvv = ~(code[2] >> 3) & 15;
    reg = (code[4] >> 3 & 7) + r;
    rm = (code[4] & 7);
    const int mod = code[4] >> 6;
    in_registers = mod == 3;
    if (in_registers) return;
    uint64_t address;
    int base = rm;
    if (rm == 4) {
      const uint8_t sib = code[length++];
      base = sib & 7;
      const int index = (sib >> 3 & 7) + x;
      if (index != 4) row = register_of(context, index) << (sib >> 6);
    }
    if (base == 5 && mod == 0) refuse("an address without a base");
    address = register_of(context, base + b);
    if (mod == 1) address += static_cast<uint64_t>(int64_t{static_cast<int8_t>(code[length++])});
    if (mod == 2) {
      int32_t displacement;
      std::memcpy(&displacement, code + length, 4);
      address += static_cast<uint64_t>(int64_t{displacement});
      length += 4;
    }
    memory = reinterpret_cast<uint8_t*>(address);
  }
};

void carry_out(const Instruction& of) {
  enum { kNone, k66, kF3, kF2 };
  if (of.opcode == 0x49 && !of.in_registers && of.kind == kNone) return configure(of.memory);
  if (!machine.configured) refuse("tiles without a configuration");
  const auto each_row = [&](auto&& copy) {
    for (int i = 0; i < machine.rows[of.reg]; ++i) {
      copy(of.memory + static_cast<uint64_t>(i) * of.row, machine.tiles[of.reg][i],
           machine.row_bytes[of.reg]);
    }
  };
  if (of.opcode == 0x49 && of.in_registers && of.kind == kNone) {
    machine.configured = false;
  } else if (of.opcode == 0x49 && of.in_registers && of.kind == kF2) {
    std::memset(machine.tiles[of.reg], 0, sizeof machine.tiles[of.reg]);
  } else if (of.opcode == 0x4b && of.kind == kF2) {
    each_row([](const uint8_t* memory, uint8_t* tile, size_t n) { std::memcpy(tile, memory, n); });
  } else if (of.opcode == 0x4b && of.kind == kF3) {
    each_row([](uint8_t* memory, const uint8_t* tile, size_t n) { std::memcpy(memory, tile, n); });
  } else if (of.opcode == 0x5c && of.kind == kF3) {
    multiply(of.reg, of.rm, of.vvvv);
  } else {
    refuse("an unknown instruction");
  }
}

void on_illegal_instruction(int, siginfo_t*, void* state) {
  auto& context = *static_cast<ucontext_t*>(state);
  auto& at = context.uc_mcontext.gregs[REG_RIP];
  const Instruction instruction(reinterpret_cast<const uint8_t*>(at), context);
  carry_out(instruction);
  at += instruction.length;
}

bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & 1u << 22) != 0 && (d & 1u << 24) != 0 &&
         syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

}  // namespace

bool may_use_amx() {
  if (has_amx()) return true;
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, nullptr) == 0;
}
#else
bool may_use_amx() { return false; }
#endif

}  // namespace graphopt::cpu
