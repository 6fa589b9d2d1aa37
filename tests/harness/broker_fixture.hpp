// SPDX-License-Identifier: Apache-2.0
// A real broker, as a process of its own, for one test: started by exec, ready before the constructor returns, and at
// the end asked whether its books are empty (over the admin socket, by raw wire), stopped by SIGTERM and required to
// exit with 0. Its log names no bug of its own. If anything of that is not so, the case fails, and the log is printed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/fd.hpp"
#include "tests/harness/temp_dir.hpp"

namespace harness {

struct BrokerOptions {
  std::string engine = "auto";         // auto, epoll, io_uring
  std::string kernel;                  // "5.15", "6.1", "6.18": pretended; empty: the real one
  bool system = false;                 // needs can_change_uid(); the broker then runs as `uid`
  unsigned uid = 65534;                // system mode
  std::string config;                  // text of a configuration file
  std::string seam;                    // more for --seam: "fail=accept:EMFILE:1"
  std::vector<std::string> arguments;  // more options
  std::vector<int> sockets;            // passed as a service manager does: LISTEN_FDS
  std::string socket_names;            // LISTEN_FDNAMES
  std::string notify;                  // NOTIFY_SOCKET
  bool expect_empty_books = true;      // false: regions may be left at the end (kept ones, held by other processes)
  bool expect_exit_0 = true;
};

class BrokerFixture {
 public:
  explicit BrokerFixture(BrokerOptions options = {});
  BrokerFixture(const BrokerFixture&) = delete;
  BrokerFixture& operator=(const BrokerFixture&) = delete;
  ~BrokerFixture();

  bool running() const { return pid_ > 0; }  // false: it did not start; `log` says why
  // Where it did not start: its exit status, or 128 + signal, or -1 when it had to be killed.
  int start_status() const { return start_status_; }
  pid_t pid() const { return pid_; }
  const std::string& directory() const { return directory_; }
  const std::string& socket() const { return socket_; }
  const std::string& admin() const { return admin_; }
  std::string log() const;
  std::size_t descriptors() const;  // open in the broker now; 0 where this user may not look

  // The parts of the books that are not empty, in words; "" when all are (waits a moment: an end is seen
  // asynchronously).
  std::string books(int milliseconds = 30'000) const;
  void kill();    // SIGKILL: it owes nothing at the end
  int stop();     // SIGTERM; the exit status, or 128 + signal, or -1 when it did not end
  void reload();  // SIGHUP
  void configure(const std::string& text) const;  // replaces its configuration file
  std::string config_file() const { return folder_.file("config.toml"); }
  int wait_end();                // of a broker that ends by itself; the same values
  static std::string program();  // the broker under test

 private:
  bool ended(int milliseconds, int& status);

  BrokerOptions options_;
  TempDir folder_;
  std::string directory_, socket_, admin_;
  pid_t pid_ = -1;
  int start_status_ = -1;
};

// "epoll" and "io_uring" (the latter only where it works here), for cases that run on each.
std::vector<std::string> engines();
// Every engine on every kernel that the project promises: {"epoll", ""}, {"epoll", "5.15"}, ... io_uring only on those
// that have it (6.0 and later).
std::vector<BrokerOptions> engines_and_kernels();
std::string name_of(const BrokerOptions& options);  // "epoll, kernel 5.15", for SUBCASE and CAPTURE

}  // namespace harness
