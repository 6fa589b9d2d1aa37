// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes, read as a list that a peer wrote. Built only with -Dfuzz=true and clang:
//
//   CXX=clang++-19 CC=clang-19 meson setup build-fuzz -Dfuzz=true && ninja -C build-fuzz tests/storm/fuzz_list
//   build-fuzz/tests/storm/fuzz_list -max_total_time=120
#include <cstdio>
#include <cstdlib>

#include "tests/storm/list_check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static storm::ListCheck check;
  if (size < 1) return 0;
  const std::span<const std::byte> list(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  // One byte of steering: how many parts the handle says, or as many as the list says itself, for behind another number
  // nothing is reached.
  std::uint64_t expected = data[0];
  if ((data[0] & 0x80) != 0 && list.size() >= 4) {
    std::uint32_t parts;
    std::memcpy(&parts, list.data(), sizeof parts);
    expected = parts;
  }
  const std::string fault = check(list, expected);
  if (fault.empty()) return 0;
  std::fprintf(stderr, "%s\n", fault.c_str());
  std::abort();
}
