// SPDX-License-Identifier: Apache-2.0
// Copies, fills and the operations on single words by which streams meet.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "tests/fakecuda/stream.hpp"

namespace fakecuda {
namespace {

Code to_device(int ordinal, Address to, const void* from, std::size_t bytes) {
  return each_part(ordinal, to, bytes, true, [&](char* data, std::size_t done, std::size_t part) {
    std::memcpy(data, static_cast<const char*>(from) + done, part);
  });
}

Code to_host(int ordinal, void* to, Address from, std::size_t bytes) {
  return each_part(ordinal, from, bytes, false, [&](const char* data, std::size_t done, std::size_t part) {
    std::memcpy(static_cast<char*>(to) + done, data, part);
  });
}

Code on_device(int ordinal, Address to, Address from, std::size_t bytes) {
  std::vector<char> part(std::min(bytes, std::size_t{1} << 20));
  for (std::size_t done = 0; done < bytes; done += part.size()) {
    const std::size_t now = std::min(part.size(), bytes - done);
    if (const Code code = to_host(ordinal, part.data(), from + done, now); code != kSuccess) return code;
    if (const Code code = to_device(ordinal, to + done, part.data(), now); code != kSuccess) return code;
  }
  return kSuccess;
}

// Host memory that is registered is read when the copy runs; other memory was staged when it was asked for.
bool registered(const State& it, const void* from, std::size_t bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(from);
  for (const auto& [address, mapping] : it.mappings) {
    const auto begin = reinterpret_cast<std::uintptr_t>(mapping.host);
    if (mapping.kind == Kind::host && start >= begin && start + bytes <= begin + mapping.bytes) return true;
  }
  return false;
}

template <class Word>
bool reached(Word now, Word value, unsigned how) {
  switch (how) {
    case 0:  // cyclic
      return static_cast<std::make_signed_t<Word>>(static_cast<Word>(now - value)) >= 0;
    case 1:
      return now == value;
    case 2:
      return (now & value) != 0;
    default:
      return static_cast<Word>(~(now | value)) != 0;
  }
}

// One access to a word, as a GPU over the bus: atomic, with the fence before a write.
template <class Word>
Code access_word(int ordinal, Address address, bool write, Word* value) {
  return each_part(ordinal, address, sizeof(Word), write, [&](char* data, std::size_t, std::size_t) {
    std::atomic_ref<Word> word(*reinterpret_cast<Word*>(data));
    if (write) word.store(*value, std::memory_order_seq_cst);
    else *value = word.load(std::memory_order_acquire);
  });
}

template <class Word>
Code write_value(const char* name, Stream stream, Address address, Word value, unsigned flags) {
  return enter(name, Needs::context, [&](State& it, Lock&) -> Code {
    if (flags > 1 || address % sizeof(Word) != 0) return kInvalidValue;
    const int ordinal = current_context()->ordinal;
    return enqueue(it, stream, name, [=]() -> Code {
      Word word = value;
      return access_word(ordinal, address, true, &word);
    });
  });
}

template <class Word>
Code wait_value(const char* name, Stream stream, Address address, Word value, unsigned flags) {
  return enter(name, Needs::context, [&](State& it, Lock&) -> Code {
    if ((flags & ~(3U | 1U << 30)) != 0 || address % sizeof(Word) != 0) return kInvalidValue;
    const CUctx_st* context = current_context();
    return enqueue(it, stream, name, [=]() -> Code {
      for (;;) {
        Word now = 0;
        if (const Code code = access_word(context->ordinal, address, false, &now); code != kSuccess) return code;
        if (reached(now, value, flags & 3U) || !rest(*context)) return kSuccess;
      }
    });
  });
}

Code fill_bytes(int ordinal, Address to, unsigned char value, std::size_t bytes) {
  return each_part(ordinal, to, bytes, true,
                   [&](char* data, std::size_t, std::size_t part) { std::memset(data, value, part); });
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  return enter("cuMemcpyHtoD", Needs::context, [&](State& it, Lock& lock) -> Code {
    const int ordinal = current_context()->ordinal;
    return run_now(it, lock, "cuMemcpyHtoD", [=] { return to_device(ordinal, to, from, bytes); });
  });
}

FAKECUDA_API Code cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  return enter("cuMemcpyDtoH", Needs::context, [&](State& it, Lock& lock) -> Code {
    const int ordinal = current_context()->ordinal;
    return run_now(it, lock, "cuMemcpyDtoH", [=] { return to_host(ordinal, to, from, bytes); });
  });
}

FAKECUDA_API Code cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream stream) {
  return enter("cuMemcpyHtoDAsync", Needs::context, [&](State& it, Lock&) -> Code {
    const int ordinal = current_context()->ordinal;
    if (registered(it, from, bytes))
      return enqueue(it, stream, "cuMemcpyHtoDAsync", [=] { return to_device(ordinal, to, from, bytes); });
    const auto* start = static_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(start, start + bytes);
    return enqueue(it, stream, "cuMemcpyHtoDAsync",
                   [=] { return to_device(ordinal, to, staged->data(), staged->size()); });
  });
}

FAKECUDA_API Code cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream stream) {
  return enter("cuMemcpyDtoHAsync", Needs::context, [&](State& it, Lock&) -> Code {
    const int ordinal = current_context()->ordinal;
    return enqueue(it, stream, "cuMemcpyDtoHAsync", [=] { return to_host(ordinal, to, from, bytes); });
  });
}

FAKECUDA_API Code cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream stream) {
  return enter("cuMemcpyDtoDAsync", Needs::context, [&](State& it, Lock&) -> Code {
    const int ordinal = current_context()->ordinal;
    return enqueue(it, stream, "cuMemcpyDtoDAsync", [=] { return on_device(ordinal, to, from, bytes); });
  });
}

FAKECUDA_API Code cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, Stream stream) {
  return enter("cuMemsetD8Async", Needs::context, [&](State& it, Lock&) -> Code {
    const int ordinal = current_context()->ordinal;
    return enqueue(it, stream, "cuMemsetD8Async", [=] { return fill_bytes(ordinal, to, value, bytes); });
  });
}

FAKECUDA_API Code cuStreamWriteValue64_v2(Stream stream, Address address, std::uint64_t value, unsigned flags) {
  return write_value("cuStreamWriteValue64", stream, address, value, flags);
}
FAKECUDA_API Code cuStreamWaitValue64_v2(Stream stream, Address address, std::uint64_t value, unsigned flags) {
  return wait_value("cuStreamWaitValue64", stream, address, value, flags);
}
FAKECUDA_API Code cuStreamWriteValue32_v2(Stream stream, Address address, std::uint32_t value, unsigned flags) {
  return write_value("cuStreamWriteValue32", stream, address, value, flags);
}
FAKECUDA_API Code cuStreamWaitValue32_v2(Stream stream, Address address, std::uint32_t value, unsigned flags) {
  return wait_value("cuStreamWaitValue32", stream, address, value, flags);
}
