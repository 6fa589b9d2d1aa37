// SPDX-License-Identifier: Apache-2.0
// Plain words of one thread: no signal handler reads or writes them.
#include "base/interrupt.hpp"

#include <utility>

namespace shmb::interrupt {
namespace {

struct Words {
  bool enabled = false, noted = false;
  unsigned calls = 0, shields = 0;
};
constinit thread_local Words words;

}  // namespace

bool set_enabled(bool on) { return std::exchange(words.enabled, on); }
bool enabled() { return words.enabled; }

bool note() {
  if (!words.enabled || words.calls == 0) return false;
  words.noted = true;
  return words.shields == 0;
}

bool noted() { return words.noted; }
bool cuts() { return words.noted && words.shields == 0; }

Call::Call() : noted_before_(std::exchange(words.noted, false)), shields_before_(std::exchange(words.shields, 0)) {
  ++words.calls;
}
Call::~Call() {
  --words.calls;
  words.noted = noted_before_;
  words.shields = shields_before_;
}

Shield::Shield() { ++words.shields; }
Shield::~Shield() { --words.shields; }

Exposed::Exposed() : shields_before_(std::exchange(words.shields, 0)) {}
Exposed::~Exposed() { words.shields = shields_before_; }

}  // namespace shmb::interrupt
