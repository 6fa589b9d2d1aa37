// SPDX-License-Identifier: Apache-2.0
// The books of the ledger: which record each object has. compare_books.hpp checks that records and objects agree.
//
// Handlers change objects and note them (books/booked.hpp). `write_books` makes the records of those objects and
// commits them at once. It stands before each reply and at the end of each call from the transport. So what a client
// has been told is in the books, and no reader ever finds half of a turn there.
#pragma once

#include <optional>

#include "daemon/books/records.hpp"

namespace shmb::daemon {

class Ledger;
class Session;
struct Fork;
struct GpuDevice;
struct GpuMemory;
struct GpuNode;
struct Group;
struct LaneBook;
struct LaneHold;
struct Lease;
struct Participant;
struct Pool;
struct QueueBook;
struct SessionNumbers;
struct StoredAnswer;
struct Reference;
struct Region;
struct Ticket;
struct Watch;
struct Worker;
struct World;

books::SessionRecord record_of(const Session& session);
books::PacketsRecord record_of(const SessionNumbers& numbers);
books::RegionRecord record_of(const Region& region);
books::GroupRecord record_of(const Group& group);
books::LeaseRecord record_of(const Lease& lease);
books::TicketRecord record_of(const Ticket& ticket);
books::WatchRecord record_of(const Watch& watch);
books::WorldRecord record_of(const World& world);
books::WorkerRecord record_of(const Worker& worker);
books::ReferenceRecord record_of(const Reference& reference);
books::ForkRecord record_of(const Fork& fork);
books::PoolRecord record_of(const Pool& pool);
books::ParticipantRecord record_of(const Participant& participant);
books::QueueRecord record_of(const QueueBook& queue);
books::LaneRecord record_of(const LaneBook& lane);
books::HoldRecord record_of(const LaneHold& hold);
books::GpuMemoryRecord record_of(const GpuMemory& gpu);
books::GpuNodeRecord record_of(const GpuNode& node);
std::uint32_t parts_of(const StoredAnswer& answer);
books::AnswerRecord part_of(const StoredAnswer& answer, std::uint32_t index);
bool has_record(const Region& region);
bool has_record(const Worker& worker);
bool has_record(const Participant& participant);
bool has_record(const QueueBook& queue);
bool has_record(const LaneBook& lane);
std::optional<books::NameRecord> name_of(const Region& region);
std::optional<books::FailureRecord> failure_of(const Reference& reference);
books::SegmentRecord segment_of(const Pool& pool, std::uint32_t index);
books::GpuChunkRecord chunk_of(const GpuMemory& gpu, std::uint32_t index);
books::GpuDeviceRecord device_of(const Session& session, const GpuDevice& device);

// If there is no memory for the records, the books stay as they were, and the next call writes these records too. Until
// then requests that need memory are refused.
void write_books(Ledger& ledger);

}  // namespace shmb::daemon
