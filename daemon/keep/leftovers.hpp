// SPDX-License-Identifier: Apache-2.0
// The descriptors that a dead broker has left in the common table. The next broker takes over those that it finds in
// the books (daemon/books/last_books.hpp), and owns none of the others. It closes all others that were not open when
// the keepers began.
//
// The search comes before the next broker opens anything. So each number that it finds is a leftover, and is closed
// exactly once. One of the keepers' numbers may name another file by then: the dead broker closed the number and used
// it again. It is a leftover too. The next broker opens again what the number named, if it can.
//
// Sockets are shut down first, so that each client sees end of file, however slow the closes are. Two threads close the
// files. The close of a file that a client made may wait for that client for ever. So one thread closes only such
// files, and the other thread all others.
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
  bool lost(int number) const;                  // it was known, and is not any more
  void spare(const std::vector<int>& numbers);  // in order; their owner is found
  void close();                                 // once

 private:
  std::vector<int> numbers_, lost_;
  Closer harmless_, of_clients_;
};

}  // namespace shmb::daemon::keep
