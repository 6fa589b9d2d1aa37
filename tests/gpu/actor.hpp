// SPDX-License-Identifier: Apache-2.0
// The plain processes of a test: the test process itself is the holder and never loads the driver; producers and
// consumers are forked from it before any driver call and talk over SOCK_SEQPACKET with SCM_RIGHTS. An actor closes
// every descriptor it did not ask for, so that "the last close" in a test is really the last one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace shmb::facts {

struct Message {
  std::string text;
  std::vector<int> fds;
  bool end = false;  // the other side is gone
};

// Words over a socket. The holder's end fails the test when the other side ends without a word.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void say(const std::string& text, const std::vector<int>& fds = {}) const;
  Message hear() const;
  Message expect(const std::string& text) const;  // fails on any other word
  int fd() const { return fd_; }

 private:
  int fd_;
};

class Actor {
 public:
  // as_nobody: uid and gid 65534 first.
  Actor(const char* role, const std::function<void(const Line&)>& body, bool as_nobody = false);
  const Line& line() const { return line_; }
  pid_t pid() const { return pid_; }
  void kill();    // SIGKILL and reap
  void finish();  // says "end" and waits for a clean exit
  int reap();     // wait status
  bool ended() const { return reaped_; }

 private:
  Line line_{-1};
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::string role_;
};

// Waits for "end" (or for the holder's death): the usual last line of an actor.
void until_end(const Line& line);

void close_all(std::vector<int>& fds);
std::size_t fd_count(pid_t pid);
// How many descriptors of a process lead to /dev/nvidia*, "12: nvidiactl 5, nvidia0 3, nvidia-uvm 4".
std::string nvidia_fds(pid_t pid);
long rss_kib(pid_t pid);
bool maps_has(pid_t pid, const char* word);
// Processes of this machine that hold the GPU's device node, by /proc: "" when none.
std::string node_holders(const std::string& node);
// The device node of the first GPU.
std::string gpu_node();

}  // namespace shmb::facts
