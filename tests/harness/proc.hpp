// SPDX-License-Identifier: Apache-2.0
// Files of /proc, read with plain calls: the seam of base must not reach them.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace harness {

// Empty where there is none. Not by a stream: those throw when a process ends while its file is read (ESRCH).
inline std::string contents(const std::string& path) {
  std::string text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char buffer[4096];
  for (ssize_t size; fd >= 0 && (size = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(size));
  if (fd >= 0) ::close(fd);
  return text;
}

// The entries of a folder that are numbers, but for the descriptor that it is read with.
inline std::vector<int> numbers_in(const std::string& path) {
  std::vector<int> found;
  DIR* const folder = ::opendir(path.c_str());
  if (folder == nullptr) return found;
  const int own = path == "/proc/self/fd" ? ::dirfd(folder) : -1;
  while (const dirent* entry = ::readdir(folder))
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
      if (const int number = std::atoi(entry->d_name); number != own) found.push_back(number);
  ::closedir(folder);
  return found;
}

// Of this process.
inline std::size_t open_descriptors() { return numbers_in("/proc/self/fd").size(); }

}  // namespace harness
