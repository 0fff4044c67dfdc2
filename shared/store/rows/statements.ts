/**
 * The writing statement: one for a single write and for a batch of coalesced ones, with only the
 * parts that the batch needs. Its name says which, so each shape is planned once a connection.
 *
 *   i    the rows as sent, from parameters
 *   bad  references that do not resolve: their rows are not written
 *   heir patients with accounts, which their rows are to inherit: these are not written either
 *   ok   updates with the time they get; those whose version is current are w
 *   w    the rows really written
 *
 * All parts of one statement see the same snapshot, so no part may delete what another inserts:
 * side rows are compared by their whole primary key. Every list is sorted, so that concurrent
 * batches take their locks in one order.
 */

import type { Statement } from '../../platform/postgres/statement.ts'
import { eventPart, IS_QUIET, registryEventPart, watchParts } from '../events/rows.ts'
import { downloadRows } from './downloads.ts'
import { inputRows } from './input-rows.ts'
import { scheduleRows } from './schedules.ts'
import {
  type Bind,
  codeRows,
  heirRows,
  type Listed,
  missingTargets,
  rangeRows,
  stringRows,
  textRows,
  uniqueRows,
} from './side-rows.ts'
import { ownParametersJob } from './upkeep-jobs.ts'
import type { Write } from './write-rows.ts'

/** One statement for 1 to 100 writes of the same kind to different resources. */
export function writeStatement(writes: readonly Write[]): Statement {
  const isUpdate = writes[0]?.kind === 'update'
  const values: unknown[] = []
  const bind: Bind = (value, type) => {
    values.push(value)
    return `$${values.length}::${type}`
  }
  const shape: string[] = [isUpdate ? 'update' : 'insert', writes.length === 1 ? '1' : 'n']
  const parts = [`i as (${inputRows(writes, bind)})`]

  const targets = listed(writes, (write) => write.targets)
  if (targets.length > 0) {
    shape.push('targets')
    parts.push(missingTargets(targets, bind))
  }
  const heirs = listed(writes, (write) => write.heirOf)
  if (heirs.length > 0) {
    shape.push('heirs')
    parts.push(heirRows(heirs, bind))
  }
  const refused = [...(targets.length > 0 ? ['bad'] : []), ...(heirs.length > 0 ? ['heir'] : [])]
  const isLeft = refused.map((part) => `i.n not in (select n from ${part})`).join(' and ')
  const times = listed(writes, ({ time }) => (time ? [time] : []))
  if (times.length > 0) shape.push('times')
  parts.push(`${isUpdate ? 'ok' : 'w'} as materialized (
    select i.*, ${times.length > 0 ? timeGiven(times, bind) : NOW} as lu
    from i ${isLeft && `where ${isLeft}`})`)
  parts.push(isUpdate ? UPDATE_RESOURCE : INSERT_RESOURCE, INSERT_VERSION)
  const sides = writes.map((write) => (write.sideRows ? write.rows : undefined))

  const strings = listed(sides, (rows) => rows?.strings ?? [])
  const ranges = listed(sides, (rows) => rows?.ranges ?? [])
  const hasSides = isUpdate && writes.some((write) => write.sideRows)
  if (strings.length > 0 || hasSides) {
    shape.push('strings')
    parts.push(...stringRows(strings, isUpdate, bind))
  }
  if (ranges.length > 0 || hasSides) {
    shape.push('ranges')
    parts.push(...rangeRows(ranges, isUpdate, bind))
  }
  const texts = listed(writes, (write) => (write.text ? [write.text] : []))
  if (texts.length > 0) {
    shape.push('texts')
    parts.push(textRows(texts, bind))
  }
  const codes = listed(writes, (write) => write.rows?.codes ?? [])
  if (codes.length > 0) {
    shape.push('codes')
    parts.push(codeRows(codes, bind))
  }
  const unique = listed(writes, (write) => write.unique ?? [])
  const owners = writes.flatMap((write, n) => (write.unique ? [n + 1] : []))
  if (owners.length > 0) {
    shape.push('unique')
    parts.push(...uniqueRows(unique, owners, bind))
  }
  const tenants = writes.flatMap((write) => write.tenant ?? [])
  if (tenants.length > 0) {
    shape.push('tenants')
    const ids = bind(
      tenants.map(({ id }) => id),
      'uuid[]',
    )
    const versions = bind(
      tenants.map(({ fullText }) => fullText),
      'int[]',
    )
    parts.push(`t as (insert into tenant as t (fhir_id, full_text)
      select * from unnest(${ids}, ${versions})
      on conflict (fhir_id) do update set full_text = excluded.full_text
      returning t.project, t.fhir_id)`)
  }
  const reindexed = writes.filter((write) => write.reindexes).map((write) => write.project)
  const switched = tenants.filter(({ isChanged }) => isChanged).map(({ id }) => id)
  if (reindexed.length + switched.length > 0) {
    shape.push(switched.length > 0 ? 'switch' : 'reindex')
    const named = bind(`{${[...new Set(reindexed)].join(',')}}`, 'int[]')
    const projects = () => `array(select unnest(${named}) union
      select project from t where fhir_id = any(${bind(switched, 'uuid[]')}))`
    parts.push(`p as (${ownParametersJob(switched.length > 0 ? projects() : named)})`)
  }
  const schedules = listed(writes, ({ schedule }) => (schedule === undefined ? [] : [schedule]))
  if (schedules.length > 0) {
    shape.push('schedules')
    parts.push(...scheduleRows(schedules, bind))
  }
  const watches = listed(writes, (write) => (write.watch ? [write.watch] : []))
  if (watches.length > 0) {
    shape.push('watches')
    parts.push(...watchParts(watches, bind))
  }
  const downloads = listed(writes, ({ download }) => (download ? [download] : []))
  if (downloads.length > 0) {
    shape.push('downloads')
    parts.push(downloadRows(downloads, bind))
  }
  const op = isUpdate ? 'u' : 'c'
  const made: string[] = []
  let quiet = 'false'
  if (writes.some(({ event }) => event !== undefined && event.home === undefined)) {
    shape.push('events')
    parts.push(eventPart(op))
    made.push('exists (select from o)')
    quiet = IS_QUIET
  }
  const filed = listed(writes, ({ event }) => (event?.home === undefined ? [] : [event]))
  if (filed.length > 0) {
    shape.push('filed')
    parts.push(registryEventPart(op, filed, bind))
    made.push('exists (select from ro)')
  }
  const missing = refused.map(
    (part) => `union all select n, null::timestamptz, target, false, false from ${part}`,
  )
  // The conditions of a policy differ each time.
  const isNamed = targets.every(({ item }) => item.sight === undefined)
  return {
    ...(isNamed ? { name: shape.join('-') } : {}),
    text: `with ${parts.join(',\n')}
      select w.n, w.lu, null::int as target, ${made.join(' or ') || 'false'} as "hasEvents",
        ${quiet} as "isQuiet"
      from w ${missing.join(' ')}`,
    values,
  }
}

const NOW = `greatest(date_trunc('milliseconds', clock_timestamp()), i.after)`

/** Nothing was changed after now. */
function timeGiven(times: readonly Listed<Date>[], bind: Bind): string {
  const numbers = bind(`{${times.map(({ n }) => n).join(',')}}`, 'int[]')
  const given = bind(`{${times.map(({ item }) => item.toISOString()).join(',')}}`, 'timestamptz[]')
  return `least(${NOW},
    (select g.lu from unnest(${numbers}, ${given}) as g(n, lu) where g.n = i.n))`
}

const INSERT_RESOURCE = `r as (
  insert into resource (project, type, id, ver, lu, d_lo, d_hi, nref, keys)
  select project, type, id, ver, lu, d_lo, d_hi, nref, keys from w)`

/** Without keys the row is found as before. */
const UPDATE_RESOURCE = `w as (
  update resource r set ver = ok.ver, lu = ok.lu,
    d_lo = case when ok.keys is null then r.d_lo else ok.d_lo end,
    d_hi = case when ok.keys is null then r.d_hi else ok.d_hi end,
    nref = coalesce(ok.nref, r.nref), keys = coalesce(ok.keys, r.keys)
  from ok
  where r.project = ok.project and r.type = ok.type and r.id = ok.id and r.ver = ok.ver - 1
    and r.lu = ok.after
  returning ok.*)`

const INSERT_VERSION = `v as (
  insert into version (project, type, id, ver, lu, author, content, meta_at, meta_ext)
  select project, type, id, ver, lu, author,
    head || to_char(lu at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || tail,
    meta_at, meta_ext
  from w)`

function listed<W, T>(writes: readonly W[], items: (write: W) => readonly T[]): Listed<T>[] {
  return writes.flatMap((write, i) => items(write).map((item) => ({ n: i + 1, item })))
}
