// SPDX-License-Identifier: Apache-2.0
// Counts what operator new is asked for in this thread while one of these lives.
#pragma once

namespace room {

class AllocationsForbidden {
 public:
  AllocationsForbidden();
  ~AllocationsForbidden();
  long seen() const;
};

// Lets one allocation of this thread fail, the n-th from now on, as if there was no memory at that moment.
class OneAllocationFails {
 public:
  explicit OneAllocationFails(long nth);
  ~OneAllocationFails();
  bool failed() const;  // so many allocations were made
};

}  // namespace room
