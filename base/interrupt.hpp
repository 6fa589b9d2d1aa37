// SPDX-License-Identifier: Apache-2.0
// A signal that ends the waits of one thread. The thread asks for it, and it is off in every other thread.
//
// A wait that the kernel ends with EINTR sets a mark in its thread. The mark holds until the end of the call of the C
// ABI in which it was set. While it holds, every deadline of that thread counts as passed. So the call does what it
// does after a deadline: it gives back what came late, and it returns. The C ABI then reports SHMB_E_INTERRUPTED.
//
// Some work must not be left half-way, such as half a message on a stream. It has a Shield, under which deadlines count
// by the clock alone. A signal is noted there too, and ends the next wait outside of the Shield.
#pragma once

namespace shmb::interrupt {

// The calling thread's switch. Returns what it was.
bool set_enabled(bool on);
bool enabled();

// For the wrappers of calls that wait, after EINTR. True: the wait ends here. False: it is repeated.
bool note();
// Whether a signal was noted in the call of the C ABI that this thread is in.
bool noted();
// The same, and no Shield is up: every deadline counts as passed.
bool cuts();

// One call of the C ABI. A call inside of another one, from a callback of the user, has a mark of its own.
class Call {
 public:
  Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

 private:
  bool noted_before_;
  unsigned shields_before_;
};

class Shield {
 public:
  Shield();
  Shield(const Shield&) = delete;
  Shield& operator=(const Shield&) = delete;
  ~Shield();
};

// Lifts all Shields around the one wait that a signal is to end.
class Exposed {
 public:
  Exposed();
  Exposed(const Exposed&) = delete;
  Exposed& operator=(const Exposed&) = delete;
  ~Exposed();

 private:
  unsigned shields_before_;
};

}  // namespace shmb::interrupt
