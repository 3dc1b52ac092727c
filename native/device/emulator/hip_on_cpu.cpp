// Scheduler of hip_on_cpu.h and the entry points through which tests launch kernels.
//
// Fibers are made with ucontext and switched with _setjmp/_longjmp, because swapcontext enters the kernel for
// the signal mask each time.
#include "device/emulator/hip_on_cpu.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace graphopt::hip::cpu {

WorkItem* current = nullptr;

namespace {

constexpr int kWaveSize = GRAPHOPT_WAVE;
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kMaxThreads = 1024;

enum class State { kReady, kAtBarrier, kAtExchange, kAtDone, kFinished };

struct Fiber : WorkItem {
  jmp_buf jump;
  State state = State::kReady;
  bool made = false;
};

struct Kernel {
  void (*function)();
  Entry entry;
  int max_threads;
  std::vector<size_t> parameters;  // bytes of each
};

std::map<std::string, Kernel>& table() {
  static std::map<std::string, Kernel> kernels;
  return kernels;
}

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<void*> exchanged;  // one pointer for each work-item
  char* stacks = nullptr;
  alignas(64) char lds[kLdsBytes];
  alignas(64) char dynamic[kLdsBytes];
  jmp_buf scheduler;
  const Kernel* kernel = nullptr;
  void** args = nullptr;
  const char* name = "";
  size_t threads = 0;
};

Machine& machine() {
  static Machine m;
  return m;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "hip_on_cpu: kernel %s: %s\n", machine().name, what);
  std::abort();
}

Fiber& self() { return *static_cast<Fiber*>(current); }

void park(State state) {
  Fiber& fiber = self();
  fiber.state = state;
  if (_setjmp(fiber.jump) == 0) _longjmp(machine().scheduler, 1);
}

// A fiber is made once and runs work-item after work-item: making one enters the kernel, too.
void work() {
  for (;;) {
    machine().kernel->entry(machine().kernel->function, machine().args);
    park(State::kFinished);
  }
}

void resume(size_t i) {
  Machine& m = machine();
  Fiber& fiber = m.fibers[i];
  current = &fiber;
  if (_setjmp(m.scheduler) != 0) return;
  if (fiber.made) _longjmp(fiber.jump, 1);
  fiber.made = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = m.stacks + i * kStackBytes;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, work, 0);
  setcontext(&context);
}

bool all(size_t begin, size_t end, State state) {
  const auto& f = machine().fibers;
  return std::all_of(f.begin() + static_cast<ptrdiff_t>(begin), f.begin() + static_cast<ptrdiff_t>(end),
                     [state](const Fiber& fiber) { return fiber.state == state; });
}

void release(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) machine().fibers[i].state = State::kReady;
}

void run_group(Dim3 block_index, std::vector<size_t>& order, const std::function<void()>& reorder) {
  Machine& m = machine();
  std::memset(m.lds, 0xff, sizeof m.lds);
  std::memset(m.dynamic, 0xff, sizeof m.dynamic);
  for (size_t i = 0; i < m.threads; ++i) {
    Fiber& fiber = m.fibers[i];
    fiber.thread = {static_cast<uint32_t>(i), 0, 0};
    fiber.block = block_index;
    fiber.state = State::kReady;
  }
  const size_t wave = kWaveSize;
  for (;;) {
    reorder();
    bool progress = false;
    for (const size_t i : order) {
      if (m.fibers[i].state != State::kReady) continue;
      resume(i);
      progress = true;
    }
    for (size_t w = 0; w < m.threads; w += wave) {
      const size_t end = std::min(w + wave, m.threads);
      if (all(w, end, State::kAtExchange) || all(w, end, State::kAtDone)) {
        release(w, end);
        progress = true;
      }
    }
    if (all(0, m.threads, State::kFinished)) return;
    if (all(0, m.threads, State::kAtBarrier)) {
      release(0, m.threads);
      progress = true;
    }
    if (!progress) fail("some work-items never reach a barrier or shuffle that others wait at");
  }
}

}  // namespace

void Registration::add(const char* name, void (*kernel)(), int max_threads, Entry entry,
                       std::vector<size_t> parameters) {
  if (!table().emplace(name, Kernel{kernel, entry, max_threads, std::move(parameters)}).second) {
    std::fprintf(stderr, "hip_on_cpu: two kernels are called %s\n", name);
    std::abort();
  }
}

void* static_lds() { return machine().lds; }
void* dynamic_lds() { return machine().dynamic; }
void wait_for_group() { park(State::kAtBarrier); }

void* const* wave_exchange(void* mine) {
  Machine& m = machine();
  const size_t i = current->thread.x;
  m.exchanged[i] = mine;
  park(State::kAtExchange);
  return m.exchanged.data() + i / kWaveSize * kWaveSize;
}

void wave_done() { park(State::kAtDone); }

}  // namespace graphopt::hip::cpu

using namespace graphopt::hip::cpu;

// Runs a kernel to its end, one at a time: there is one machine for all devices and drivers. `args` points to
// the arguments in parameter order; `order` is 0 forward, 1 reverse, 2 random with `seed`. Returns 0, or 1
// when there is no such kernel.
extern "C" __attribute__((visibility("default"))) int graphopt_host_launch(const char* name,
                                                                           const uint32_t* grid,
                                                                           const uint32_t* block,
                                                                           uint32_t lds, void** args,
                                                                           int order, uint32_t seed) {
  const auto found = table().find(name);
  if (found == table().end()) return 1;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  Machine& m = machine();
  m.kernel = &found->second;
  m.args = args;
  m.name = name;
  m.threads = block[0];
  if (block[1] != 1 || block[2] != 1) fail("work-groups have one dimension");
  if (m.threads == 0 || m.threads > static_cast<size_t>(m.kernel->max_threads))
    fail("work-group size out of bounds");
  if (m.threads % kWaveSize != 0) fail("the work-group size is no multiple of the wave size");
  if (lds > graphopt::hip::kLdsBytes) fail("more dynamic LDS than there is");
  if (m.stacks == nullptr) {
    m.fibers.resize(kMaxThreads);
    m.exchanged.resize(kMaxThreads);
    void* stacks = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for the stacks");
    m.stacks = static_cast<char*>(stacks);
  }
  std::mt19937 random(seed);
  const auto arrange = [&](std::vector<size_t>& list) {
    std::iota(list.begin(), list.end(), size_t{0});
    if (order == 1) std::reverse(list.begin(), list.end());
    if (order == 2) std::shuffle(list.begin(), list.end(), random);
  };
  std::vector<size_t> blocks(size_t{grid[0]} * grid[1] * grid[2]), items(m.threads);
  arrange(blocks);
  arrange(items);
  for (const size_t b : blocks) {
    const auto x = static_cast<uint32_t>(b % grid[0]), y = static_cast<uint32_t>(b / grid[0] % grid[1]),
               z = static_cast<uint32_t>(b / grid[0] / grid[1]);
    run_group({x, y, z}, items, [&] {
      if (order == 2) arrange(items);
    });
  }
  return 0;
}

// How many parameters a kernel has, -1 for one that is not there, and the bytes of each.
extern "C" __attribute__((visibility("default"))) int graphopt_host_parameters(const char* name,
                                                                               const size_t** sizes) {
  const auto found = table().find(name);
  if (found == table().end()) return -1;
  *sizes = found->second.parameters.data();
  return static_cast<int>(found->second.parameters.size());
}

// Comma-separated names of all kernels.
extern "C" __attribute__((visibility("default"))) const char* graphopt_host_kernels() {
  static std::string names;
  names.clear();
  for (const auto& [name, kernel] : table()) names += (names.empty() ? "" : ",") + name;
  return names.c_str();
}

extern "C" __attribute__((visibility("default"))) int graphopt_host_wave() { return kWaveSize; }
