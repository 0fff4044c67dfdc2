/** Binary visibility by `securityContext`: https://hl7.org/fhir/R4/binary.html#security */

import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { notFound } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import { type Meta, parseReference, referenceIn } from '../fhir/resource.ts'
import { dialect, fixedSql } from '../postgres/chosen-dialect.ts'
import { arrayLiteral } from '../postgres/statement.ts'
import { readMany } from './read/read.ts'
import { isLegalId, readRow, rowScope, type StoreContext } from './rows/context.ts'
import { toVersion, WELL_FORMED_CONTENT } from './rows/rows.ts'
import type { BinaryHead, HistoryPage, Version } from './rows/version.ts'

export const BINARY = 'Binary'

/** Errors: 404. */
export async function requireVisible(
  store: StoreContext,
  principal: Principal,
  version: Version,
): Promise<Version> {
  const [found] = await keepVisible(store, principal, [version], readSecurityContext)
  if (found === undefined) throw notFound()
  return found
}

/** Errors: 404 for an unreadable Binary, which must not be changed either. */
export async function requireVisibleId(
  store: StoreContext,
  principal: Principal,
  id: string,
): Promise<void> {
  const row = await readRow(store, principal, BINARY, id)
  if (row !== undefined) await requireVisible(store, principal, toVersion(row, id))
}

/** Leaves out invisible versions. Errors: 404 when none is left. */
export async function visibleHistory(
  store: StoreContext,
  principal: Principal,
  page: HistoryPage,
): Promise<HistoryPage> {
  const versions = await keepVisible(store, principal, page.versions, readSecurityContext)
  const hidden = page.versions.length - versions.length
  if (versions.length === 0 && hidden > 0) throw notFound()
  return { ...page, total: page.total && page.total - hidden, versions }
}

/** Invisible Binaries become undefined; other types stay. */
export async function visibleVersions(
  store: StoreContext,
  principal: Principal,
  versions: readonly (Version | undefined)[],
): Promise<readonly (Version | undefined)[]> {
  const binaries = versions.filter((version) => version?.type === BINARY) as readonly Version[]
  const left = new Set(await keepVisible(store, principal, binaries, readSecurityContext))
  return versions.map((version) =>
    version === undefined || version.type !== BINARY || left.has(version) ? version : undefined,
  )
}

interface HeadRow {
  readonly place: number
  readonly ver: number
  readonly meta_ext: string
  readonly context: string | null
}

const HEAD = `v.place, v.ver, v.meta_ext, (${WELL_FORMED_CONTENT}::json -> 'securityContext')::text as context`
const HEADS = fixedSql(
  () => `select ${HEAD} from (select x.place, v.*
    from ${dialect.unnest('$1::int[]', '$2::uuid[]')} as x(place, id)
    cross join lateral (select * from version where project = $3 and type = $4 and id = x.id
      order by ver desc limit 1) v) v
  where v.content is not null`,
)
const HEADS_EVERYWHERE = fixedSql(
  () => `select ${HEAD} from (
    select distinct on (x.place) x.place, v.ver, v.meta_ext, v.content
    from ${dialect.unnest('$1::int[]', '$2::uuid[]')} as x(place, id) cross join tenant t
    join version v on v.project = t.project and v.type = $4 and v.id = x.id
    order by x.place, v.project = $3 desc, v.ver desc) v
  where v.content is not null`,
)

/** One statement, and one more when some have a `securityContext`. Content stays in the database. */
export async function readBinaries(
  store: StoreContext,
  principal: Principal,
  ids: readonly string[],
): Promise<ReadonlyMap<string, BinaryHead>> {
  const legal = ids.filter(isLegalId)
  if (legal.length === 0 || !may(principal, BINARY, 'read')) return new Map()
  const { project, everywhere } = rowScope(principal, BINARY)
  const rows = await store.connection.query<HeadRow>({
    name: everywhere ? 'read-binaries-everywhere' : 'read-binaries',
    text: everywhere ? HEADS_EVERYWHERE() : HEADS(),
    values: [
      arrayLiteral(legal.keys()),
      arrayLiteral(legal.map((id) => store.keys.rowId(BINARY, id))),
      project,
      typeNumber(BINARY),
    ],
  })
  const left = await keepVisible(store, principal, rows, ({ context }) =>
    context === null ? undefined : (referenceIn(JSON.parse(context)) ?? ''),
  )
  return new Map(
    left.map(({ place, ver, meta_ext }) => {
      const { project: projectId = '' } = JSON.parse(`{${meta_ext}}`) as Meta
      return [legal[place] ?? '', { projectId, ver }] as const
    }),
  )
}

async function keepVisible<T>(
  store: StoreContext,
  principal: Principal,
  binaries: readonly T[],
  context: (binary: T) => string | undefined,
): Promise<readonly T[]> {
  // The service itself reads the code of all bots.
  if (principal.isSuperAdmin && principal.membershipId === undefined) return binaries
  const contexts = new Set(binaries.flatMap((binary) => context(binary) ?? []))
  if (contexts.size === 0) return binaries
  const known = [...contexts].flatMap((text) => parseReference(text) ?? [])
  const found = await readMany(store, principal, known)
  const readable = new Set(
    known.filter((_, place) => found[place] !== undefined).map(({ type, id }) => `${type}/${id}`),
  )
  return binaries.filter((binary) => {
    const text = context(binary)
    const reference = parseReference(text)
    return text === undefined || readable.has(`${reference?.type}/${reference?.id}`)
  })
}

function readSecurityContext({ content }: Version): string | undefined {
  // Cheaper than parsing the code of a bot; most have no context.
  if (content === undefined || !content.includes('"securityContext"')) return undefined
  const { securityContext } = JSON.parse(content) as Record<string, unknown>
  // A context without a reference hides the Binary.
  return securityContext === undefined ? undefined : (referenceIn(securityContext) ?? '')
}
