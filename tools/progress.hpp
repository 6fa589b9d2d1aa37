// SPDX-License-Identifier: Apache-2.0
// A progress bar on stderr for slow operations. It is shown only on a terminal, and erased at the end.
#pragma once

#include <cstdint>
#include <string>

namespace shmb::tools {

class Progress {
 public:
  Progress(std::string what, std::uint64_t total, bool wanted);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();
  void at(std::uint64_t done);

 private:
  std::string what_;
  std::uint64_t total_;
  bool on_;
  std::int64_t started_, drawn_ = 0;
};

}  // namespace shmb::tools
