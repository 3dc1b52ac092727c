// Notifies sanitizers of switches between stacks. A sanitizer tracks the stack of a thread and must be
// notified of a switch to another stack: by leave_for() immediately before it, and by arrive() immediately
// after it. Without a sanitizer these functions do nothing.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace graphopt::hip::cpu {

#if defined(__SANITIZE_ADDRESS__)

struct Stack {
  void* locals = nullptr;  // the sanitizer's copy of locals that outlive their frames
  const void* bottom = nullptr;
  size_t bytes = 0;

  static Stack made(const char* bottom, size_t bytes) { return {nullptr, bottom, bytes}; }
  // Returns the stack of the running thread. Its bounds are unknown until the first fiber is entered;
  // arrive() then sets them.
  static Stack running() { return {}; }
  void leave_for(const Stack& next) { __sanitizer_start_switch_fiber(&locals, next.bottom, next.bytes); }
  void arrive(Stack& scheduler) {
    const void* from = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(locals, &from, &size);
    if (scheduler.bottom == nullptr) {
      scheduler.bottom = from;
      scheduler.bytes = size;
    }
  }
};

#elif defined(__SANITIZE_THREAD__)

struct Stack {
  void* fiber = nullptr;

  static Stack made(const char*, size_t) { return {__tsan_create_fiber(0)}; }
  static Stack running() { return {__tsan_get_current_fiber()}; }
  void leave_for(const Stack& next) { __tsan_switch_to_fiber(next.fiber, 0); }
  void arrive(Stack&) {}
};

#else

struct Stack {
  static Stack made(const char*, size_t) { return {}; }
  static Stack running() { return {}; }
  void leave_for(const Stack&) {}
  void arrive(Stack&) {}
};

#endif

}  // namespace graphopt::hip::cpu
