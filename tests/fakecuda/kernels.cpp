// SPDX-License-Identifier: Apache-2.0
// The kernels of tests/gpu/kernels.hpp, in C++: what a module's text names as an entry can be launched, and no more is
// read of it. One thread does the work of all; words are accessed under the access rules of the device.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "tests/fakecuda/stream.hpp"

struct CUmod_st {};
struct CUfunc_st {};

namespace fakecuda {
namespace {

using Module = CUmod_st*;
using Function = CUfunc_st*;
constexpr const char* kNames[] = {"fill", "check", "watch", "spin", "poke", "tally", "gaps"};
constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;

struct Modules {
  std::map<Module, std::string> loaded;
};

Modules& modules() {
  static auto* const all = new Modules;
  return *all;
}

std::uint64_t parameter(void** parameters, int number) {
  std::uint64_t value = 0;
  std::memcpy(&value, parameters[number], sizeof value);
  return value;
}

template <class Each>
Code each_word(int ordinal, Address start, std::uint64_t words, Each each) {
  return each_part(ordinal, start, words * 8, false, [&](char* data, std::size_t done, std::size_t bytes) {
    const auto* word = reinterpret_cast<const volatile std::uint64_t*>(data);
    for (std::size_t i = 0; i < bytes / 8; ++i) each(done / 8 + i, word[i]);
  });
}

Code add_to(int ordinal, Address to, std::uint64_t value) {
  if (value == 0) return kSuccess;
  return each_part(ordinal, to, 8, true, [&](char* data, std::size_t, std::size_t) {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(data)).fetch_add(value);
  });
}

Code fill_words(int ordinal, Address start, std::uint64_t words, std::uint64_t seed) {
  return each_part(ordinal, start, words * 8, true, [&](char* data, std::size_t done, std::size_t bytes) {
    auto* word = reinterpret_cast<volatile std::uint64_t*>(data);
    for (std::size_t i = 0; i < bytes / 8; ++i) word[i] = ((done / 8 + i) * kOdd) ^ seed;
  });
}

Code check_words(int ordinal, Address start, std::uint64_t words, std::uint64_t seed, Address out) {
  std::uint64_t wrong = 0;
  const Code code = each_word(ordinal, start, words,
                              [&](std::uint64_t i, std::uint64_t word) { wrong += word != ((i * kOdd) ^ seed); });
  return code != kSuccess ? code : add_to(ordinal, out, wrong);
}

Code spin_for(const CUctx_st& context, std::uint64_t ns) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  while (std::chrono::steady_clock::now() < end && rest(context)) {
  }
  return kSuccess;
}

Code watch_words(const CUctx_st& context, Address start, std::uint64_t words, std::uint64_t seed, Address out,
                 std::uint64_t ns) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  do {
    if (const Code code = check_words(context.ordinal, start, words, seed, out); code != kSuccess) return code;
    if (const Code code = add_to(context.ordinal, out + 8, 1); code != kSuccess) return code;
  } while (std::chrono::steady_clock::now() < end && rest(context));
  return kSuccess;
}

Code tally_words(int ordinal, Address start, std::uint64_t words, std::uint64_t value, Address out) {
  std::uint64_t equal = 0, nonzero = 0;
  Code code = each_word(ordinal, start, words, [&](std::uint64_t, std::uint64_t word) {
    equal += word == value;
    nonzero += word != 0;
  });
  if (code == kSuccess) code = add_to(ordinal, out, equal);
  return code != kSuccess ? code : add_to(ordinal, out + 8, nonzero);
}

// The longest time between two loads, and how many there were.
Code time_gaps(const CUctx_st& context, Address start, std::uint64_t words, std::uint64_t ns, Address out) {
  using Clock = std::chrono::steady_clock;
  auto last = Clock::now();
  const auto end = last + std::chrono::nanoseconds(ns);
  std::uint64_t longest = 0, loads = 0, word = 0;
  do {
    const Code code = each_word(context.ordinal, start + 8 * word, 1, [](std::uint64_t, std::uint64_t) {});
    if (code != kSuccess) return code;
    const auto now = Clock::now();
    longest = std::max<std::uint64_t>(longest, static_cast<std::uint64_t>((now - last).count()));
    last = now;
    ++loads;
    word = word + 8192 < words ? word + 8192 : 0;
  } while (last < end && rest(context));
  const std::uint64_t told[] = {longest, loads};
  return each_part(context.ordinal, out, sizeof told, true, [&](char* data, std::size_t done, std::size_t bytes) {
    std::memcpy(data, reinterpret_cast<const char*>(told) + done, bytes);
  });
}

Work work_of(std::size_t which, const CUctx_st* context, void** from) {
  const int ordinal = context->ordinal;
  constexpr int kParameters[] = {3, 4, 5, 1, 2, 4, 5};
  std::uint64_t p[5] = {};
  for (int i = 0; i < kParameters[which]; ++i) p[i] = parameter(from, i);
  switch (which) {
    case 0:
      return [=] { return fill_words(ordinal, p[0], p[1], p[2]); };
    case 1:
      return [=] { return check_words(ordinal, p[0], p[1], p[2], p[3]); };
    case 2:
      return [=] { return watch_words(*context, p[0], p[1], p[2], p[3], p[4]); };
    case 3:
      return [=] { return spin_for(*context, p[0]); };
    case 4:
      return [=] {
        return each_part(ordinal, p[0], 8, true, [&](char* data, std::size_t, std::size_t) {
          std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(data)).store(p[1]);
        });
      };
    case 5:
      return [=] { return tally_words(ordinal, p[0], p[1], p[2], p[3]); };
    default:
      return [=] { return time_gaps(*context, p[0], p[1], p[2], p[4]); };
  }
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuModuleLoadData(CUmod_st** module, const void* image) {
  return enter("cuModuleLoadData", Needs::context, [&](State& it, Lock&) -> Code {
    if (module == nullptr || image == nullptr) return kInvalidValue;
    *module = reinterpret_cast<Module>(0x7000 + 0x10 * it.next_id++);
    modules().loaded.emplace(*module, static_cast<const char*>(image));
    ++it.modules;
    return kSuccess;
  });
}

FAKECUDA_API Code cuModuleUnload(CUmod_st* module) {
  return enter("cuModuleUnload", Needs::context, [&](State& it, Lock&) -> Code {
    if (modules().loaded.erase(module) == 0) return kInvalidHandle;
    --it.modules;
    return kSuccess;
  });
}

FAKECUDA_API Code cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  return enter("cuModuleGetFunction", Needs::context, [&](State&, Lock&) -> Code {
    const auto found = modules().loaded.find(module);
    if (function == nullptr || found == modules().loaded.end()) return kInvalidHandle;
    if (!found->second.contains(".entry " + std::string(name) + "(")) return kNotFound;
    for (std::size_t i = 0; i < std::size(kNames); ++i) {
      if (std::strcmp(kNames[i], name) != 0) continue;
      *function = reinterpret_cast<Function>(i + 1);
      return kSuccess;
    }
    return kNotFound;
  });
}

FAKECUDA_API Code cuLaunchKernel(CUfunc_st* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, Stream stream, void** parameters, void**) {
  return enter("cuLaunchKernel", Needs::context, [&](State& it, Lock&) -> Code {
    const auto which = reinterpret_cast<std::uintptr_t>(function) - 1;
    if (which >= std::size(kNames) || parameters == nullptr) return kInvalidHandle;
    return enqueue(it, stream, kNames[which], work_of(which, current_context(), parameters));
  });
}
