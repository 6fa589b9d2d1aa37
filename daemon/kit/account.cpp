// SPDX-License-Identifier: Apache-2.0
// The arithmetic of charges. Every sum is checked for overflow, and an overflow is a refusal.
#include "daemon/kit/account.hpp"

#include <algorithm>

namespace shmb::daemon {

std::string_view slot_name(std::uint16_t resource) {
  static constexpr std::string_view names[] = {"nothing", "bytes",   "regions", "leases", "sessions",
                                               "groups",  "tickets", "names",   "watches"};
  if (resource == SHMBW_SLOT_WORLDS) return "worlds";
  if (resource == SHMBW_SLOT_REFERENCES) return "references";
  if (resource == SHMBW_SLOT_GPU_BYTES) return "gpu_bytes";
  if (resource == SHMBW_SLOT_GPU_DESCRIPTORS) return "gpu_descriptors";
  if (resource == SHMBW_SLOT_TIMELINES) return "timelines";
  return resource < std::size(names) ? names[resource] : "descriptors";
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

std::uint64_t Account::effective_limit(Resource resource) const {
  std::uint64_t out = limit(resource);
  for (const Account* at = parent_; at; at = at->parent_) out = std::min(out, at->limit(resource));
  return out;
}

bool Account::balanced() const {
  return std::ranges::all_of(used_, [](std::uint64_t used) { return used == 0; });
}

std::expected<Charge, Shortage> Account::charge(Resource resource, std::uint64_t amount) {
  for (Account* at = this; at; at = at->parent_) {
    std::uint64_t used = at->used_[index(resource)];
    std::uint64_t limit = at->limit_[index(resource)];
    if (used > limit || amount > limit - used)
      return std::unexpected(Shortage{static_cast<std::uint16_t>(resource), static_cast<std::uint16_t>(at->scope_),
                                      at->id_, limit, used, amount});
  }
  return take(resource, amount);
}

Charge Account::take(Resource resource, std::uint64_t amount) {
  for (Account* at = this; at; at = at->parent_) {
    std::uint64_t& used = at->used_[index(resource)];
    used += amount;
    if (resource == Resource::bytes) at->peak_bytes_ = std::max(at->peak_bytes_, used);
  }
  return Charge(*this, resource, amount);
}

void Account::give_back(Resource resource, std::uint64_t amount) {
  for (Account* at = this; at; at = at->parent_) {
    std::uint64_t& used = at->used_[index(resource)];
    if (used < amount && report_ && *report_) (*report_)("own bug: more given back than was charged");
    used -= std::min(used, amount);
  }
}

void Charge::give_back() {
  if (Account* account = std::exchange(account_, nullptr)) account->give_back(resource_, amount_);
}

void Charge::rise() {
  if (!account_ || !account_->parent_) return;
  account_->used_[Account::index(resource_)] -= amount_;
  account_ = account_->parent_;
}

void Charge::move_to(Account& sibling) {
  if (!account_ || account_ == &sibling || account_->parent_ != sibling.parent_) return;
  account_->used_[Account::index(resource_)] -= amount_;
  sibling.used_[Account::index(resource_)] += amount_;
  account_ = &sibling;
}

}  // namespace shmb::daemon
