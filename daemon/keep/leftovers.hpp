// SPDX-License-Identifier: Apache-2.0
// The descriptors that a dead broker has left in the table which its keepers share with the next one. That one begins
// with empty books, so it owns none of them. It closes all that were not open when the keepers began.
//
// They are found before the next broker opens anything, so a number that is found is nobody else's, and each is closed
// exactly once. A number of the keepers that names another file now was closed by that broker and used again. It is
// found too, and the next broker makes what it named anew, if it can. Sockets are shut down at once: each client sees
// end of file, whatever else is slow. The closing is done by two threads. The close of a file that a client made may
// wait for that client for ever, so such files do not stand before any other.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/kit/closer.hpp"

namespace shmb::daemon::keep {

// A number and the file that it names.
struct Known {
  int number = -1;
  std::uint64_t device = 0, inode = 0;
  bool operator==(const Known&) const = default;
};
// All that are open now, in order. For the process that was started, before it has keepers.
std::vector<Known> open_now();

class Leftovers {
 public:
  // Those that are open and not in `known`. To be called before this process opens anything. Without /proc the whole
  // table is searched.
  explicit Leftovers(const std::vector<Known>& known);
  std::size_t count() const { return numbers_.size(); }
  bool lost(int number) const;  // it was known, and is not any more
  void close();                 // once

 private:
  std::vector<int> numbers_, lost_;
  Closer harmless_, of_clients_;
};

}  // namespace shmb::daemon::keep
