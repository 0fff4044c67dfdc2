/** Subscriptions that wait for a change. */

import type { Grant } from '../../access/grant.ts'
import {
  criteriaGrant,
  readSubscription,
  SUBSCRIPTION,
  type SubscriptionTerms,
} from '../../access/subscription.ts'
import { Cache, getOrInsert } from '../../core/cache.ts'
import { HttpError } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { ChangeEvent } from './event-rows.ts'
import { parseVersion, toVersion, type VersionRow, versionColumns } from './rows.ts'

export interface Watcher {
  readonly project: number
  readonly id: string
  readonly subscription: Resource
  readonly terms: SubscriptionTerms
  readonly grant: Grant
}

export interface WatchRow {
  readonly project: number
  readonly id: string
  readonly watched: number
  readonly ver: number
  readonly since: Date
  readonly isStored: boolean
}

/** Includes Subscriptions that were changed since. One statement. */
export async function readWatches(
  connection: Connection,
  events: readonly Pick<ChangeEvent, 'project' | 'type' | 'at'>[],
): Promise<readonly WatchRow[]> {
  const wanted = new Map(
    events.map(({ project, type }) => [`${project} ${type}`, { project, type }]),
  )
  const first = Math.min(...events.map(({ at }) => at.getTime()))
  return connection.query<WatchRow>({
    name: 'watches',
    text: `select distinct a.project, a.id::text, a.watched, a.ver, a.since,
        a.until is null as "isStored"
      from ${dialect.unnest('$1::int[]', '$2::smallint[]')} as x(project, type)
      join active_subscription a on a.project = x.project
        and (a.watched = x.type or a.since > $3)
      where a.until is null or a.until > clock_timestamp()
      order by a.project, a.id::text`,
    values: [
      `{${[...wanted.values()].map(({ project }) => project).join(',')}}`,
      `{${[...wanted.values()].map(({ type }) => typeNumber(type)).join(',')}}`,
      new Date(first),
    ],
  })
}

export interface ActiveSubscription {
  readonly subscription: Resource
  readonly terms: SubscriptionTerms
}

export interface Watchers {
  /** Undefined for an inactive or missing version. */
  active(
    connection: Connection,
    place: Pick<WatchRow, 'project' | 'id' | 'ver'>,
  ): Promise<ActiveSubscription | undefined>
  /** Returns the terms at a time; undefined for a Subscription that did not wait then. */
  at(
    connection: Connection,
    watch: WatchRow,
    time: Date,
    own: OwnParameters | undefined,
  ): Promise<Watcher | undefined>
}

const KEPT = 5000

/** Versions are immutable, so the cache never expires. */
export function createWatchers(): Watchers {
  const read = new Cache<string, { readonly row: VersionRow }>({ name: 'subscriptions', max: KEPT })
  const parsed = new WeakMap<VersionRow, ActiveSubscription>()
  const made = new Cache<string, { readonly watcher: Watcher | undefined }>({
    name: 'watchers',
    max: KEPT,
  })

  async function versionAt(
    connection: Connection,
    { project, id, ver }: Pick<WatchRow, 'project' | 'id' | 'ver'>,
  ) {
    const key = `${project} ${id} ${ver}`
    const known = read.get(key)
    if (known !== undefined) return known.row
    const row = await readVersion(connection, project, id, { test: 'and v.ver = $4', value: ver })
    if (row !== undefined) read.set(key, { row })
    return row
  }

  return {
    async active(connection, place) {
      const row = await versionAt(connection, place)
      if (row === undefined || row.content === null) return undefined
      const known = parsed.get(row)
      if (known !== undefined) return known
      const subscription = parseVersion(toVersion(row))
      if (subscription.status !== 'active') return undefined
      const found = { subscription, terms: readSubscription(subscription) }
      parsed.set(row, found)
      return found
    },
    async at(connection, watch, time, own) {
      const row =
        watch.since <= time
          ? await versionAt(connection, watch)
          : await readVersion(connection, watch.project, watch.id, {
              test: 'and v.lu <= $4',
              value: time,
            })
      if (row === undefined || row.content === null) return undefined
      const key = `${row.project} ${row.id} ${row.ver} ${own?.stamp ?? ''}`
      const { watcher } = getOrInsert(made, key, () => ({ watcher: readWatcher(row, own) }))
      const { ends } = watcher?.terms ?? {}
      return ends !== undefined && ends <= time ? undefined : watcher
    },
  }
}

/** Errors: 400. */
export function watcherFrom(
  project: number,
  id: string,
  subscription: Resource,
  own: OwnParameters | undefined,
): Watcher {
  const terms = readSubscription(subscription)
  return { project, id, subscription, terms, grant: criteriaGrant(terms, own) }
}

function readWatcher(row: VersionRow, own: OwnParameters | undefined): Watcher | undefined {
  const subscription = parseVersion(toVersion(row))
  if (subscription.status !== 'active') return undefined
  try {
    return watcherFrom(row.project, row.id, subscription, own)
  } catch (error) {
    // A custom search parameter in its criteria may be gone by now.
    if (error instanceof HttpError && error.status < 500) return undefined
    throw error
  }
}

async function readVersion(
  connection: Connection,
  project: number,
  id: string,
  { test, value }: { readonly test: string; readonly value: number | Date },
): Promise<VersionRow | undefined> {
  const [row] = await connection.query<VersionRow>({
    text: `select ${versionColumns('v')} from version v
      where v.project = $1 and v.type = $2 and v.id = $3 ${test} order by v.ver desc limit 1`,
    values: [project, typeNumber(SUBSCRIPTION), id, value],
  })
  return row
}
