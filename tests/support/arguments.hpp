// SPDX-License-Identifier: Apache-2.0
// The arguments of a test program that are not doctest's, such as `--deaths 10000`. They choose the long form.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace support {

// All of them, without the program.
inline std::vector<std::string> arguments() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (!words.empty()) words.erase(words.begin());
  return words;
}
inline bool has_argument(const std::string& name) { return std::ranges::count(arguments(), name) > 0; }
// The number behind `name`.
inline std::uint64_t argument(const std::string& name, std::uint64_t otherwise) {
  const auto words = arguments();
  const auto at = std::ranges::find(words, name);
  return at == words.end() || at + 1 == words.end() ? otherwise : std::strtoull((at + 1)->c_str(), nullptr, 10);
}

}  // namespace support
