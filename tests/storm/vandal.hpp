// SPDX-License-Identifier: Apache-2.0
// A participant that joins properly and then writes nonsense over all that it can write: the control area as a whole,
// each field of it with words that are nearly right, and the slots whose contents others are reading. As a program of
// the broker's own uid it writes over the directory too (docs/security.md).
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "client/queue/pool.hpp"

namespace storm {

enum class Damage : std::uint32_t {
  words,      // uniform
  pages,      // zeros, ones, noise by the page
  holes,      // punched
  fields,     // masks, generations, tokens, events, heads, tails, positions, cells, each with words nearly right
  handles,    // cells that name slots and lists that cannot be
  contents,   // lists in slots, while they are read
  events,     // futex words and sleepers' flags
  near_miss,  // one bit of a used word, one cell copied over another
  directory,  // words nearly right, for a while, and sometimes all of it
  count
};
const char* damage_name(Damage damage);

// Maps a pool's directory for writing, as a program of the same uid can that means harm: it changes the mode of the
// file. Empty: it cannot.
std::span<std::uint64_t> seize_directory(int fd, std::size_t bytes);

class Vandal {
 public:
  Vandal(std::shared_ptr<shmb::client::Pool> pool, std::span<std::uint64_t> directory, std::uint64_t seed)
      : pool_(std::move(pool)), directory_(directory), dice_(seed) {}
  void strike(Damage damage);  // some hundred stores

 private:
  std::uint64_t roll(std::uint64_t below) { return dice_() % below; }
  std::uint64_t any_word();
  std::uint64_t near(std::uint64_t word);
  void fields();
  void handles();
  void contents();
  void cell(bool with_body);
  void directory();
  bool lane(shmb::pool::LaneView& view, shmb::pool::QueueKind& kind);

  const std::shared_ptr<shmb::client::Pool> pool_;
  const std::span<std::uint64_t> directory_;
  std::vector<std::pair<std::size_t, std::uint64_t>> taken_;  // words of it, as they were
  std::mt19937_64 dice_;
};

}  // namespace storm
