// SPDX-License-Identifier: Apache-2.0
// Reads the books that a Store has written, of this version or another one with the same major number. It believes
// nothing: not a number, not an offset, not a text. It reports each fault in a sentence, and reads nothing outside of
// the memory that it was given.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace shmb::daemon::books {

class Reader {
 public:
  // Brings the memory to the state after its last commit, in place. An error says why this is no image that can be
  // read. The memory must outlive the reader.
  static Result<Reader> open(std::span<std::byte> memory);

  // The records that are damaged, or contradict another one. At most 100 sentences, and one that counts the rest.
  std::vector<std::string> problems() const;
  // All records, one a line, with the names of the table. Zeros are left out, secrets are not shown, and bytes that are
  // no printable characters are escaped.
  std::string text() const;

 private:
  explicit Reader(std::span<const std::byte> memory) : memory_(memory) {}

  std::span<const std::byte> memory_;
};

}  // namespace shmb::daemon::books
