// SPDX-License-Identifier: Apache-2.0
// A user's world of their own: a runtime directory in which the tool finds, or starts, a private broker. The broker
// ends with it, and a test that leaves regions behind fails with a message.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/harness/temp_dir.hpp"
#include "tests/support/until.hpp"

namespace shmb::test {

struct Ended {
  int status = -1;  // exit status, or 128 + signal
  std::string out, err;
};

using support::eventually;

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

class World {
 public:
  World() = default;
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // `shmbroker ARGUMENTS`.
  Ended tool(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment = {});
  Ended run(const std::string& program, const std::vector<std::string>& arguments);  // another program in this world
  // Standard input, output and error are a terminal; `out` is what it shows. `columns` 0: it does not say how wide it
  // is.
  Ended tool_on_terminal(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment = {}, unsigned short columns = 0);
  // The caller waits for it. `out`: the file that gets its standard output; empty: that of this process.
  pid_t start_tool(const std::vector<std::string>& arguments, const std::string& out = {});

  std::string file(const std::string& name, const std::string& content) const;  // gives its path
  const std::string& directory() const { return dir_.path(); }
  std::string socket() const { return dir_.file("shmbroker/socket"); }
  pid_t broker();         // 0: none answers
  std::uint64_t bytes();  // charged by the broker now
  bool empties();         // it charges nothing, now or soon: memory counts until its last close has returned

 private:
  Ended collect(const std::string& program, const std::vector<std::string>& arguments,
                const std::map<std::string, std::string>& environment);
  [[noreturn]] void become(const std::string& program, const std::vector<std::string>& arguments,
                           const std::map<std::string, std::string>& environment) const;
  harness::TempDir dir_;
};

}  // namespace shmb::test
