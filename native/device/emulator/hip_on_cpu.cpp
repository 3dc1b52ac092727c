// Scheduler of hip_on_cpu.h and the entry points for tests.
//
// Fibers are created with ucontext and switched with the compiler's __builtin_setjmp and __builtin_longjmp:
// swapcontext makes a system call for the signal mask each time, and setjmp of the C library encrypts the
// saved pointers.
#include "device/emulator/hip_on_cpu.h"

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

#include "device/emulator/stack.h"

namespace graphopt::hip::cpu {

WorkItem* current = nullptr;

namespace {

constexpr int kWaveSize = GRAPHOPT_WAVE;
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kMaxThreads = 1024;

enum class State { kReady, kAtBarrier, kAtExchange, kFinished };

using Jump = void* [5];  // filled in by __builtin_setjmp

struct Fiber {
  Jump jump;
  char* memory = nullptr;
  Stack stack;
  bool made = false;
};

// A copy to LDS in flight.
struct Copy {
  void* to;
  char content[16];
  size_t bytes, group;  // group: number of the copy's group in its work-item
};

struct Item : WorkItem {
  State state = State::kReady;
  std::vector<Copy> copies;
  size_t copy_group = 0;   // group of its next copy
  Fiber* fiber = nullptr;  // the fiber in which it started
  int exchange = 0;        // index of the half of `exchanged` that its next exchange uses
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
  std::vector<Item> items;
  std::vector<Fiber> fibers;
  std::vector<Fiber*> idle;
  std::vector<size_t> order;  // indices of items; the items of a wave are consecutive
  size_t next = 0, end = 0;   // indices into `order`, for the current pass over a wave
  // A double buffer: a work-item writes one half while others still read its previous value in the other
  // half.
  alignas(64) char exchanged[2][kMaxThreads][kExchangeBytes];
  alignas(1024) char lds[kNvidiaLdsBytes];
  size_t lds_bytes = sizeof lds;  // bytes of `lds` that may have been written
  alignas(64) char dynamic[kLdsBytes];
  bool lds_is_clean = false, dynamic_is_clean = false;
  Jump scheduler;
  Stack stack;  // the scheduler's own
  bool copies_are_late = false;
  const Kernel* kernel = nullptr;
  void** args = nullptr;
  const char* name = "";
  size_t threads = 0;
};

Machine m;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "hip_on_cpu: kernel %s: %s\n", m.name, what);
  std::abort();
}

Item& self() { return *static_cast<Item*>(current); }

// Returns the next ready item of this pass, or null at its end.
Item* next_item() {
  while (m.next < m.end) {
    Item& item = m.items[m.order[m.next++]];
    if (item.state == State::kReady) return &item;
  }
  return nullptr;
}

void work();

// Switches from the running stack, whose position the caller has saved, to the fiber of an item, or to the
// scheduler if `item` is null. The function never returns, so it is not sanitized: a sanitizer could never remove
// the red zones around its locals, or its entry in the sanitizer's own stack. The function is not inlined, because
// no function may call both __builtin_setjmp and __builtin_longjmp.
[[noreturn]] __attribute__((noinline, no_sanitize("address", "thread"))) void leave(Stack& running,
                                                                                    Item* item) {
  if (item == nullptr) {
    running.leave_for(m.stack);
    __builtin_longjmp(m.scheduler, 1);
  }
  current = item;
  if (item->fiber == nullptr) {
    item->fiber = m.idle.back();
    m.idle.pop_back();
  }
  Fiber& fiber = *item->fiber;
  if (fiber.made) {
    running.leave_for(fiber.stack);
    __builtin_longjmp(fiber.jump, 1);
  }
  fiber.made = true;
  fiber.stack = Stack::made(fiber.memory, kStackBytes);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.memory;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, work, 0);
  running.leave_for(fiber.stack);
  setcontext(&context);
  std::abort();
}

// Switches to `next` and returns when an item of this fiber can continue.
void suspend(Fiber& fiber, Item* next) {
  if (__builtin_setjmp(fiber.jump) == 0) leave(fiber.stack, next);
  self().fiber->stack.arrive(m.stack);
}

// Completes the copies of the groups before `group`.
void complete_copies(size_t group) {
  std::vector<Copy>& copies = self().copies;
  auto copy = copies.begin();
  for (; copy != copies.end() && copy->group < group; ++copy)
    std::memcpy(copy->to, copy->content, copy->bytes);
  copies.erase(copies.begin(), copy);
}

void wait_in(State state) {
  Item& item = self();
  item.state = state;
  suspend(*item.fiber, next_item());
}

// The body of a fiber. A fiber is created once and runs several work-items, because its creation makes a system
// call. Items that do not wait for others run one after another in the same fiber.
void work() {
  self().fiber->stack.arrive(m.stack);
  for (;;) {
    m.kernel->entry(m.kernel->function, m.args);
    Item& item = self();
    item.state = State::kFinished;
    Item* const next = next_item();
    if (next != nullptr && next->fiber == nullptr) {
      next->fiber = item.fiber;
      current = next;
      continue;
    }
    m.idle.push_back(item.fiber);
    suspend(*item.fiber, next);
  }
}

// Runs the ready items at `begin` to `end` of the order, once each. Returns false if there were none.
bool run_pass(size_t begin, size_t end) {
  m.next = begin;
  m.end = end;
  Item* const first = next_item();
  if (first == nullptr) return false;
  if (__builtin_setjmp(m.scheduler) == 0) leave(m.stack, first);
  m.stack.arrive(m.stack);
  return true;
}

// Makes the items at `begin` to `end` of the order ready if all of them wait in this state. Returns false
// otherwise.
bool release(size_t begin, size_t end, State state) {
  for (size_t i = begin; i < end; ++i) {
    if (m.items[m.order[i]].state != state) return false;
  }
  for (size_t i = begin; i < end; ++i) m.items[m.order[i]].state = State::kReady;
  return true;
}

// Runs all waves until their items have finished or wait at a barrier of the work-group. Without `random`, waves run
// one after another: if all waves advanced together from shuffle to shuffle, a shuffle would act as a barrier and hide
// a missing barrier. With `random`, a random wave runs to its next shuffle or wave barrier, then another one.
void run_waves(std::mt19937* random) {
  std::vector<size_t> waves;
  for (size_t begin = 0; begin < m.threads; begin += kWaveSize) waves.push_back(begin);
  while (!waves.empty()) {
    const size_t at = random != nullptr ? (*random)() % waves.size() : 0;
    const size_t begin = waves[at], end = begin + kWaveSize;
    if (run_pass(begin, end)) {
      release(begin, end, State::kAtExchange);
    } else {
      waves.erase(waves.begin() + static_cast<ptrdiff_t>(at));
    }
  }
}

void run_group(Dim3 block_index, std::mt19937* random, const std::function<void()>& reorder) {
  if (!m.lds_is_clean) std::memset(m.lds, 0xff, m.lds_bytes);
  if (!m.dynamic_is_clean) std::memset(m.dynamic, 0xff, sizeof m.dynamic);
  m.lds_is_clean = m.dynamic_is_clean = true;
  for (size_t i = 0; i < m.threads; ++i) {
    Item& item = m.items[i];
    item.thread = {static_cast<uint32_t>(i), 0, 0};
    item.block = block_index;
    item.state = State::kReady;
    item.fiber = nullptr;
    item.exchange = 0;
    item.copies.clear();
    item.copy_group = 0;
  }
  for (;;) {
    reorder();
    run_waves(random);
    const auto finished = [](const Item& item) { return item.state == State::kFinished; };
    if (std::all_of(m.items.begin(), m.items.begin() + static_cast<ptrdiff_t>(m.threads), finished)) return;
    if (!release(0, m.threads, State::kAtBarrier)) {
      fail("some work-items never reach a barrier or shuffle that others wait at");
    }
  }
}

}  // namespace

void add_kernel(const char* name, void (*kernel)(), int max_threads, Entry entry,
                std::vector<size_t> parameters) {
  if (!table().emplace(name, Kernel{kernel, entry, max_threads, std::move(parameters)}).second) {
    std::fprintf(stderr, "hip_on_cpu: two kernels are called %s\n", name);
    std::abort();
  }
}

void* static_lds(size_t bytes) {
  m.lds_is_clean = false;
  m.lds_bytes = bytes;
  return m.lds;
}
void* dynamic_lds() {
  m.dynamic_is_clean = false;
  return m.dynamic;
}
void wait_for_group() { wait_in(State::kAtBarrier); }
void wait_for_wave() { wait_in(State::kAtExchange); }

void copy_to_lds(void* to, const void* from, size_t bytes) {
  Copy copy = {to, {}, bytes, self().copy_group};
  if (from != nullptr) std::memcpy(copy.content, from, bytes);
  if (m.copies_are_late) {
    self().copies.push_back(copy);
  } else {
    std::memcpy(to, copy.content, bytes);
  }
}

void end_group_of_copies() { ++self().copy_group; }
void wait_for_copies() { complete_copies(self().copy_group + 1); }
void wait_for_copies_except(size_t groups) {
  complete_copies(self().copy_group - std::min(groups, self().copy_group));
}

const char* wave_exchange(const void* mine, size_t bytes) {
  Item& item = self();
  const size_t lane = item.thread.x;
  auto& lanes = m.exchanged[item.exchange];
  item.exchange = 1 - item.exchange;
  std::memcpy(lanes[lane], mine, bytes);
  wait_for_wave();
  return lanes[lane / kWaveSize * kWaveSize];
}

}  // namespace graphopt::hip::cpu

using namespace graphopt::hip::cpu;

// Runs a kernel to completion. There is one machine for all devices and drivers, and calls are serialised.
// `args` points to the arguments in parameter order; `order` is 0 for forward, 1 for reverse, 2 for random
// with `seed`. Returns 0, or 1 for an unknown kernel.
extern "C" __attribute__((visibility("default"))) int graphopt_host_launch(const char* name,
                                                                           const uint32_t* grid,
                                                                           const uint32_t* block,
                                                                           uint32_t lds, void** args,
                                                                           int order, uint32_t seed) {
  const auto found = table().find(name);
  if (found == table().end()) return 1;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  m.kernel = &found->second;
  m.args = args;
  m.name = name;
  m.threads = block[0];
  if (block[1] != 1 || block[2] != 1) fail("work-groups have one dimension");
  if (m.threads == 0 || m.threads > static_cast<size_t>(m.kernel->max_threads))
    fail("work-group size out of bounds");
  if (m.threads % kWaveSize != 0) fail("the work-group size is not a multiple of the wave size");
  if (lds > graphopt::hip::kLdsBytes) fail("more dynamic LDS than available");
  if (m.fibers.empty()) {
    void* stacks = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for the stacks");
    m.items.resize(kMaxThreads);
    m.fibers.resize(kMaxThreads);
    for (Fiber& fiber : m.fibers) {
      fiber.memory = static_cast<char*>(stacks) + (&fiber - m.fibers.data()) * kStackBytes;
      m.idle.push_back(&fiber);
    }
  }
  m.copies_are_late = order != 0;
  m.stack = Stack::running();
  std::mt19937 random(seed);
  const auto arrange = [&](std::vector<size_t>& list) {
    std::iota(list.begin(), list.end(), size_t{0});
    if (order == 1) std::reverse(list.begin(), list.end());
    if (order == 2) std::shuffle(list.begin(), list.end(), random);
  };
  std::vector<size_t> blocks(size_t{grid[0]} * grid[1] * grid[2]);
  arrange(blocks);
  std::vector<size_t> waves(m.threads / kWaveSize), lanes(kWaveSize);
  m.order.resize(m.threads);
  const auto arrange_items = [&] {
    arrange(waves);
    for (size_t i = 0; i < m.threads; ++i) {
      if (i % kWaveSize == 0) arrange(lanes);
      m.order[i] = waves[i / kWaveSize] * kWaveSize + lanes[i % kWaveSize];
    }
  };
  arrange_items();
  for (const size_t b : blocks) {
    const auto x = static_cast<uint32_t>(b % grid[0]), y = static_cast<uint32_t>(b / grid[0] % grid[1]),
               z = static_cast<uint32_t>(b / grid[0] / grid[1]);
    run_group({x, y, z}, order == 2 ? &random : nullptr, [&] {
      if (order == 2) arrange_items();
    });
  }
  return 0;
}

// Returns the number of parameters of a kernel and the bytes of each, or -1 for an unknown kernel.
extern "C" __attribute__((visibility("default"))) int graphopt_host_parameters(const char* name,
                                                                               const size_t** sizes) {
  const auto found = table().find(name);
  if (found == table().end()) return -1;
  *sizes = found->second.parameters.data();
  return static_cast<int>(found->second.parameters.size());
}

// Returns the comma-separated names of all kernels.
extern "C" __attribute__((visibility("default"))) const char* graphopt_host_kernels() {
  static std::string names;
  names.clear();
  for (const auto& [name, kernel] : table()) names += (names.empty() ? "" : ",") + name;
  return names.c_str();
}

extern "C" __attribute__((visibility("default"))) int graphopt_host_wave() { return kWaveSize; }
