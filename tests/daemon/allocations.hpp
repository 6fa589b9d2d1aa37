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

}  // namespace room
