// SPDX-License-Identifier: Apache-2.0
// The fake driver from a test's side: which file it is, and its control functions. The file is loaded here too, so a
// test sees the same state as the library under test.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/fakecuda/control.hpp"

namespace fakecuda {

class Fake {
 public:
  // The library under test will load the fake: in this process and, by the environment, in its children.
  static Fake& use() {
    static Fake one;
    return one;
  }

  Audit audit() const {
    Audit found;
    call<void(Audit*)>("fakecuda_audit")(&found);
    return found;
  }
  std::vector<std::string> violations() const {
    std::vector<std::string> texts;
    const auto get = call<const char*(std::size_t)>("fakecuda_violation");
    for (const char* text = nullptr; (text = get(texts.size())) != nullptr;) texts.emplace_back(text);
    return texts;
  }
  void forget_violations() const { call<void()>("fakecuda_forget_violations")(); }
  // "cuMemMap:3:2": the third call from now gives 2; "3+": from then on
  bool fail(const std::string& text) const { return call<bool(const char*)>("fakecuda_fail")(text.c_str()); }
  void clear_failures() const { call<void()>("fakecuda_clear_failures")(); }
  void delay_us(long microseconds) const { call<void(long)>("fakecuda_delay_us")(microseconds); }
  long calls(const std::string& function) const { return call<long(const char*)>("fakecuda_calls")(function.c_str()); }
  std::size_t bytes_in_use(int ordinal = 0) const { return call<std::size_t(int)>("fakecuda_bytes_in_use")(ordinal); }
  void break_context(int code, int ordinal = 0) const { call<void(int, int)>("fakecuda_break_context")(ordinal, code); }

  // `what` outlives the call.
  void before(const char* function, std::function<void()>& what) const {
    call<void(const char*, void (*)(void*), void*)>("fakecuda_before")(
        function, [](void* with) { (*static_cast<std::function<void()>*>(with))(); }, &what);
  }

  template <class Signature>
  Signature* call(const char* name) const {
    void* found = ::dlsym(library_, name);
    if (found == nullptr) std::abort();
    return reinterpret_cast<Signature*>(found);
  }

 private:
  Fake() : library_(::dlopen(SHMB_TEST_FAKECUDA, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) std::abort();
    ::setenv("SHMB_LIBCUDA", SHMB_TEST_FAKECUDA, 1);
  }
  void* library_;
};

// A failure that ends with the scope.
struct Injected {
  explicit Injected(const std::string& text) {
    if (!Fake::use().fail(text)) std::abort();
  }
  Injected(const Injected&) = delete;
  Injected& operator=(const Injected&) = delete;
  ~Injected() { Fake::use().clear_failures(); }
};

}  // namespace fakecuda
