// SPDX-License-Identifier: Apache-2.0
// The arithmetic of charges. Every sum is checked for overflow, and an overflow is a refusal.
#include "daemon/books.hpp"

#include <algorithm>

namespace shmb::daemon {

std::string_view slot_name(std::uint16_t slot) {
  static constexpr std::string_view names[] = {"nothing", "bytes",   "regions", "leases", "sessions",
                                               "groups",  "tickets", "names",   "watches"};
  if (slot == SHMBW_SLOT_WORLDS) return "worlds";
  if (slot == SHMBW_SLOT_REFERENCES) return "references";
  if (slot == SHMBW_SLOT_GPU_BYTES) return "gpu_bytes";
  if (slot == SHMBW_SLOT_GPU_DESCRIPTORS) return "gpu_descriptors";
  if (slot == SHMBW_SLOT_TIMELINES) return "timelines";
  return slot < std::size(names) ? names[slot] : "descriptors";
}

Account::Account(shmbw_scope scope, std::uint64_t id, Account* parent, const Report* report)
    : id_(id), parent_(parent), report_(report), scope_(scope) {
  limit_.fill(kNoLimit);
}

Account::~Account() {
  if (!balanced() && report_ && *report_)
    (*report_)("own bug: an account (scope " + std::to_string(scope_) + ", id " + std::to_string(id_) +
               ") ended with something still charged to it");
}

std::uint64_t Account::effective_limit(Slot slot) const {
  std::uint64_t out = limit(slot);
  for (const Account* at = parent_; at; at = at->parent_) out = std::min(out, at->limit(slot));
  return out;
}

bool Account::balanced() const {
  return std::ranges::all_of(used_, [](std::uint64_t used) { return used == 0; });
}

std::expected<Charge, Shortage> Account::charge(Slot slot, std::uint64_t amount) {
  for (Account* at = this; at; at = at->parent_) {
    std::uint64_t used = at->used_[index(slot)];
    std::uint64_t limit = at->limit_[index(slot)];
    if (used > limit || amount > limit - used)
      return std::unexpected(Shortage{static_cast<std::uint16_t>(slot), static_cast<std::uint16_t>(at->scope_), at->id_,
                                      limit, used, amount});
  }
  for (Account* at = this; at; at = at->parent_) {
    std::uint64_t& used = at->used_[index(slot)];
    used += amount;
    if (slot == Slot::bytes) at->peak_bytes_ = std::max(at->peak_bytes_, used);
  }
  return Charge(*this, slot, amount);
}

void Account::give_back(Slot slot, std::uint64_t amount) {
  for (Account* at = this; at; at = at->parent_) {
    std::uint64_t& used = at->used_[index(slot)];
    if (used < amount && report_ && *report_) (*report_)("own bug: more given back than was charged");
    used -= std::min(used, amount);
  }
}

void Charge::give_back() {
  if (Account* account = std::exchange(account_, nullptr)) account->give_back(slot_, amount_);
}

void Charge::rise() {
  if (!account_ || !account_->parent_) return;
  account_->used_[Account::index(slot_)] -= amount_;
  account_ = account_->parent_;
}

void Charge::move_to(Account& sibling) {
  if (!account_ || account_ == &sibling || account_->parent_ != sibling.parent_) return;
  account_->used_[Account::index(slot_)] -= amount_;
  sibling.used_[Account::index(slot_)] += amount_;
  account_ = &sibling;
}

}  // namespace shmb::daemon
