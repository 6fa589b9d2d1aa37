// SPDX-License-Identifier: Apache-2.0
// A memory cgroup of version 1 or 2 for one test, below our own; gone with it. Needs a writable tree, which containers
// seldom have: `why_not` is the reason to skip.
#pragma once

#include <string>

namespace laws {

class CgroupForTest {
 public:
  CgroupForTest(const std::string& name, unsigned long long limit);
  CgroupForTest(const CgroupForTest&) = delete;
  CgroupForTest& operator=(const CgroupForTest&) = delete;
  ~CgroupForTest();

  bool usable() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }
  const std::string& path() const { return path_; }
  bool enter() const;  // the calling process
  unsigned long long usage() const;

 private:
  std::string path_, usage_file_, why_not_;
};

}  // namespace laws
