// SPDX-License-Identifier: Apache-2.0
// The functions of the fake driver for tests, beside the driver API: plain C, found with dlsym in the loaded library.
#pragma once

#include <cstddef>

namespace fakecuda {

// The objects that this process has not given back, and the calls it made that a real driver leaves undefined.
struct Audit {
  long handles = 0;        // cuMemCreate, import, retain without cuMemRelease
  long mappings = 0;       // cuMemMap
  long reservations = 0;   // cuMemAddressReserve
  long allocations = 0;    // cuMemAlloc
  long opened = 0;         // cuIpcOpenMemHandle, each open counted
  long registrations = 0;  // cuMemHostRegister
  long pins = 0;           // of them with a real pin of the kernel
  long contexts = 0;       // retained primary contexts
  long streams = 0;
  long events = 0;
  long modules = 0;
  long fds = 0;  // open descriptors of device memory, exported ones included
  long violations = 0;

  long left() const {
    return handles + mappings + reservations + allocations + opened + registrations + contexts + streams + events +
           modules;
  }
};

}  // namespace fakecuda

extern "C" {
void fakecuda_audit(fakecuda::Audit* audit);
// Violation number i, or null.
const char* fakecuda_violation(std::size_t number);
void fakecuda_forget_violations();
// "cuMemMap:3:2": its third call from now gives 2; "3+": from the third on for ever. False: not understood.
bool fakecuda_fail(const char* text);
void fakecuda_clear_failures();
void fakecuda_delay_us(long microseconds);  // before each operation of a stream
long fakecuda_calls(const char* function);  // since the start
// Bytes of device `ordinal` in use by all processes of this card.
std::size_t fakecuda_bytes_in_use(int ordinal);
// The next call of the function first calls this, without the fake's lock: what happens in the middle of another call.
void fakecuda_before(const char* function, void (*call)(void* with), void* with);
// Spoils one open file of device memory, as its holder can: what is mapped stays, other open files are whole.
void fakecuda_spoil(int descriptor);
// The device faults: the context of the ordinal has this sticky error from now on.
void fakecuda_break_context(int ordinal, int code);
}
