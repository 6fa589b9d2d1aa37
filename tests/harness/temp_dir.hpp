// SPDX-License-Identifier: Apache-2.0
// A private folder for one test, gone with it. Short, because a socket's path has at most 107 bytes.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace harness {

class TempDir {
 public:
  TempDir() {
    char path[] = "/tmp/shmbt-XXXXXX";
    if (::mkdtemp(path) == nullptr) {
      std::perror("mkdtemp in /tmp");
      std::abort();
    }
    path_ = path;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace harness
