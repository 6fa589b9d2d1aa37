// SPDX-License-Identifier: Apache-2.0
// Names of shared memory that programs are known to leave behind: one data file that a user can extend (patterns.toml).
// A name is a hint about the program, never proof that an object is lost.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "tools/host/object.hpp"

namespace shmb::host {

struct Pattern {
  std::string program, glob;
  bool hugetlb = false;
  bool keep = false;  // the program comes back for what it left
};

class Patterns {
 public:
  // The user's files first, then patterns.toml as it was compiled in. A missing file is no error; a faulty one is a
  // sentence with file and line. A file that may not be read is left out, and a sentence is added to `notes`: after a
  // change of users HOME may still be another user's.
  static Result<Patterns> load(std::vector<std::string>& notes);
  static Result<Patterns> parse(std::string_view toml, const std::string& file);

  struct Match {
    const Pattern* pattern = nullptr;
    std::optional<pid_t> creator;
  };
  // One match for each of its names that a known program gives.
  std::vector<Match> matches(const Object& object) const;
  void append(Patterns&& later);
  std::size_t size() const { return patterns_.size(); }

 private:
  std::vector<Pattern> patterns_;
};

// Whether all of `text` matches; `creator` is set from {pid}.
bool glob_matches(std::string_view glob, std::string_view text, std::optional<pid_t>& creator);

}  // namespace shmb::host
