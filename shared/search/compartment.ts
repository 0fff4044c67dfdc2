/** All resources of a compartment in one statement per page. https://hl7.org/fhir/R4/compartmentdefinition.html */

import { hiddenBy, readDecided } from '../access/decisions/decide.ts'
import {
  createTypeScope,
  fewRowsSql,
  visibilityPredicates,
} from '../access/decisions/grant-predicates.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { gone, notFound, tooCostly } from '../core/errors.ts'
import {
  type Compartment,
  compartmentParams,
  mainDate,
  resourceTypes,
  typeName,
  typeNumber,
} from '../fhir/definitions.ts'
import { type Resource, targetIn, toObjects } from '../fhir/resource.ts'
import { timestamp } from '../fhir/values.ts'
import { arrayLiteral, type Bind, binder } from '../postgres/statement.ts'
import { redactFor, redactRows } from '../store/read/read.ts'
import { requireAllowed, type StoreContext } from '../store/rows/context.ts'
import { parseVersion, toVersion, type VersionRow, versionColumns } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'
import { type Criterion, compartmentCodes, isCondition } from './language/search-request.ts'

export interface CompartmentRequest {
  /** Type of the focal resource; a Group stands for the compartments of its patients. */
  readonly type: Compartment | 'Group'
  readonly id: string
  /** Empty: all types. */
  readonly types: readonly string[]
  readonly since: Date | undefined
  /** Half-open range of the main date, epoch ms; resources without a care date always match. */
  readonly start: number | undefined
  readonly end: number | undefined
  readonly count: number
  readonly offset: number
  /** Last row of the previous page. */
  readonly after: CompartmentPosition | undefined
}

export interface CompartmentPosition {
  readonly type: string
  readonly id: string
}

export interface CompartmentPage {
  /** The focal resource first, then by type and id. */
  readonly versions: readonly Version[]
  readonly next: CompartmentPosition | undefined
}

/** Larger Groups need `$export`. */
const MOST_PATIENTS = 1000

/** Errors: 403, 404, 410 for the focal resource; 400 for a large Group. Two statements. */
export async function readCompartment(
  store: StoreContext,
  principal: Principal,
  request: CompartmentRequest,
): Promise<CompartmentPage> {
  const { type, id, count, offset, after } = request
  requireAllowed(principal, type, 'read')
  const found = await readDecided(store, principal, type, { id, interactions: ['read'] })
  const decision = found?.decisions.read
  if (found === undefined || decision === undefined) throw notFound()
  const { row } = found
  if (row.content === null) throw gone()
  const own = redactFor(principal, toVersion(row), hiddenBy(decision))
  const showsOwn =
    isWanted(request, type) && (request.since === undefined || row.lu >= request.since)
  const isFirst = after === undefined && offset === 0
  const first = isFirst && showsOwn && count > 0 ? [own] : []
  const limit = count - first.length
  const skipped = after === undefined && showsOwn ? Math.max(0, offset - 1) : offset
  const keys = compartmentKeys(store, row.project, own)
  const rows =
    keys.length === 0
      ? []
      : await findRows(store, principal, request, { own: row, keys, limit, offset: skipped })
  const shown = rows.slice(0, limit)
  const last = shown.at(-1)
  const hasMore = count > 0 && rows.length > limit
  const versions = [...first, ...(await redactRows(store, principal, () => 'read', shown))]
  const position = last === undefined ? undefined : { type: typeName(last.type), id: last.id }
  return { versions, next: hasMore ? (position ?? START) : undefined }
}

/** Sorts before every row. */
const START: CompartmentPosition = { type: '', id: '00000000-0000-0000-0000-000000000000' }

function compartmentKeys(store: StoreContext, project: number, own: Version): readonly bigint[] {
  if (own.type !== 'Group') return [store.keys.compartment(project, `${own.type}/${own.id}`)]
  const patients = groupPatients(parseVersion(own))
  if (patients.length > MOST_PATIENTS) {
    throw tooCostly(`A Group of more than ${MOST_PATIENTS} patients is for $export`)
  }
  return patients.map((reference) => store.keys.compartment(project, reference))
}

/** Returns `Patient/id` of each member of a Group. */
function groupPatients({ member }: Resource): readonly string[] {
  const found = toObjects(member).flatMap(({ entity }) => {
    const reference = targetIn(entity)
    return reference?.type === 'Patient' ? [`Patient/${reference.id}`] : []
  })
  return [...new Set(found)]
}

function isWanted({ types }: CompartmentRequest, type: string): boolean {
  return types.length === 0 || types.includes(type)
}

function compartmentTypes(principal: Principal, request: CompartmentRequest): readonly string[] {
  const compartment = request.type === 'Group' ? 'Patient' : request.type
  return resourceTypes.filter(
    (type) =>
      (type === compartment || compartmentParams(compartment, type).length > 0) &&
      isWanted(request, type) &&
      !REGISTRY_TYPES.has(type) &&
      may(principal, type, 'read'),
  )
}

interface RowsPage {
  readonly own: VersionRow
  readonly keys: readonly bigint[]
  readonly limit: number
  readonly offset: number
}

/** Reads one row more than `limit`, to detect a next page. */
async function findRows(
  store: StoreContext,
  principal: Principal,
  request: CompartmentRequest,
  { own, keys, limit, offset }: RowsPage,
): Promise<readonly VersionRow[]> {
  const types = compartmentTypes(principal, request)
  const { values, bind } = binder()
  const numbers = (names: readonly string[]) => bind(names.map(typeNumber), 'smallint[]')
  const { since, after } = request
  const tests = [
    `r.project = ${bind(own.project, 'int')}`,
    `r.keys && ${bind(arrayLiteral(keys), 'bigint[]')}`,
    ...typeTests(store, principal, {
      compartment: request.type,
      project: own.project,
      types,
      numbers,
      bind,
    }),
    `not (r.type = ${bind(own.type, 'smallint')} and r.id = ${bind(own.id, 'uuid')})`,
    ...(since === undefined ? [] : [`r.lu >= ${bind(since, 'timestamptz')}`]),
    ...dateTests(request, types, numbers, bind),
  ]
  if (after !== undefined && after.type !== '') {
    const type = bind(typeNumber(after.type), 'smallint')
    tests.push(`(r.type, r.id) > (${type}, ${bind(after.id, 'uuid')})`)
  }
  return store.connection.query<VersionRow>({
    text: `select ${versionColumns('v')} from (
        select r.project, r.type, r.id, r.ver from resource r where ${tests.join(' and ')}
        order by r.type, r.id limit ${bind(limit + 1, 'int')} offset ${bind(offset, 'int')}
      ) r join version v using (project, type, id, ver) order by v.type, v.id`,
    values,
  })
}

interface TypesOf {
  readonly compartment: CompartmentRequest['type']
  readonly project: number
  readonly types: readonly string[]
  readonly numbers: (names: readonly string[]) => string
  readonly bind: Bind
}

/** Groups the types by applicable policy criteria. Hidden elements do not make a resource a member. */
function typeTests(
  { keys }: StoreContext,
  principal: Principal,
  { compartment, project, types, numbers, bind }: TypesOf,
): string[] {
  const groups = Map.groupBy(types, (type) => {
    const grants = grantsFor(principal, type, 'read') ?? []
    // Compartment keys alone are the same for all types.
    const isCommon = grants.every(
      ({ criteria, hidden }) => hidden.length === 0 && criteria.every(isOfCompartment),
    )
    return isCommon ? JSON.stringify(grants.map(({ criteria }) => criteria)) : type
  })
  const alternatives = [...groups.values()].map((group) => {
    const [type = ''] = group
    const grants = grantsFor(principal, type, 'read')
    const place = createTypeScope(keys, principal, type, project)
    const codes = compartmentCodes(type, `${compartment === 'Group' ? 'Patient' : compartment}/`)
    const predicates = grants === undefined ? [] : visibilityPredicates(place, grants, codes)
    const isSeen = predicates === undefined ? 'false' : fewRowsSql(predicates, bind)
    return `r.type = any(${numbers(group)}) and ${isSeen}`
  })
  return [`(${alternatives.map((sql) => `(${sql})`).join(' or ') || 'false'})`]
}

function isOfCompartment(criterion: Criterion): boolean {
  if (isCondition(criterion)) return false
  if (criterion.kind === 'or') return criterion.criteria.every(isOfCompartment)
  return criterion.kind === 'compartment'
}

function dateTests(
  { start, end }: CompartmentRequest,
  types: readonly string[],
  numbers: (names: readonly string[]) => string,
  bind: Bind,
): string[] {
  if (start === undefined && end === undefined) return []
  // A date of birth is not a care date.
  const dated = types.filter((type) => ![undefined, 'birthdate'].includes(mainDate(type)))
  const bounds = [
    ...(start === undefined ? [] : [`r.d_hi > ${bind(timestamp(start), 'timestamptz')}`]),
    ...(end === undefined ? [] : [`r.d_lo < ${bind(timestamp(end), 'timestamptz')}`]),
  ]
  const isInside = `(${bounds.join(' and ')})`
  return [`(r.type <> all(${numbers(dated)}) or r.d_lo is null or ${isInside})`]
}
