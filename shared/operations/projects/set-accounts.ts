/** `$set-accounts`: sets the accounts of a resource, with `propagate` also of its whole compartment. */
import { badRequest, forbidden, tooCostly } from '../../core/errors.ts'
import { COMPARTMENTS, type Compartment } from '../../fhir/definitions.ts'
import { isObject, type Reference, type Resource, storedReference } from '../../fhir/resource.ts'
import { acceptRequest } from '../../jobs/async-requests.ts'
import {
  type Inputs,
  parametersReply,
  readKnownInputs,
  toInteraction,
} from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import type { CompartmentPosition } from '../../search/compartment.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'
import { distinctAccounts } from '../../store/write/authorize.ts'

/** Limit of a synchronous call. */
const MOST_PROPAGATED = 2000
const PAGE = 500

/**
 * Accounts set individually are kept, and those of AuditEvents. With `Prefer: respond-async` a worker runs it. Errors:
 * 400, 403, 404.
 */
export const setAccounts: Operation = {
  name: 'set-accounts',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  inputs: {
    accounts: 'object*: References',
    propagate: 'flag: Also the resources of the compartment',
  },
  text: { summary: 'Set the accounts of a patient', answer: 'Parameters' },
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    if (!principal.isProjectAdmin) throw forbidden()
    const inputs = readKnownInputs(call)
    const accounts = readAccounts(inputs)
    const { repository } = services
    const { meta } = parseVersion(await repository.read(principal, type, id))
    const propagates = inputs.flag('propagate')
    if (propagates) requireCompartment(type)
    const context = toInteraction(call)
    if (context.preferences.respondAsync) return await acceptRequest(context)
    if (propagates && !call.request.mayWait) await requireFew(call)
    const replaced = new Set((meta?.accounts ?? []).map(({ reference }) => reference))
    const next = ({ meta: current }: Resource) => {
      const kept = (current?.accounts ?? []).filter((item) => !replaced.has(item.reference))
      return distinctAccounts([...accounts, ...kept])
    }
    let updated = 0
    const propagate = async () => {
      if (propagates) updated += await setMembers(call, next)
    }
    // The resource keeps its accounts until its members have lost them: a repeat after a failure must know them. New
    // members inherit them until then, so the second pass finds those made during the first, which may take long.
    await propagate()
    await propagate()
    const own = await repository.patch(principal, { type, id }, (current) =>
      withAccounts(current, accounts),
    )
    if (own.outcome !== 'unchanged') updated += 1
    await propagate()
    return parametersReply([['resourcesUpdated', 'valueInteger', updated]])
  },
}

type Next = (current: Resource) => readonly Reference[]

/** Returns the number of changed members. */
async function setMembers(call: OperationCall, next: Next): Promise<number> {
  const { services, principal, request } = call
  let updated = 0
  for await (const member of membersOf(call)) {
    request.signal?.throwIfAborted()
    const { type, id } = member
    // An AuditEvent is never changed.
    if (type === 'AuditEvent' || isSet(parseVersion(member), next)) continue
    const written = await services.repository.patch(principal, { type, id }, (current) =>
      withAccounts(current, next(current)),
    )
    if (written.outcome !== 'unchanged') updated += 1
  }
  return updated
}

function isSet(current: Resource, next: Next): boolean {
  return JSON.stringify(next(current)) === JSON.stringify(current.meta?.accounts ?? [])
}

function readAccounts(inputs: Inputs): readonly Reference[] {
  const accounts = inputs.objects('accounts').map((item) => {
    const sent = item.reference
    const reference = typeof sent === 'string' ? storedReference(sent) : undefined
    if (reference !== undefined) return { reference }
    throw badRequest('"accounts" must be references')
  })
  return distinctAccounts(accounts)
}

function withAccounts(current: Resource, accounts: readonly Reference[]): Resource {
  const meta = isObject(current.meta) ? current.meta : {}
  const { account: _, ...rest } = meta
  return { ...current, meta: { ...rest, accounts } }
}

function requireCompartment(type: string): Compartment {
  const compartment = COMPARTMENTS.find((name): name is Compartment => name === type)
  if (compartment === undefined) throw badRequest(`${type} has no compartment to propagate to`)
  return compartment
}

/** Errors: 400 for a compartment that needs a worker. */
async function requireFew(call: OperationCall): Promise<void> {
  const { next } = await readCompartmentPage(call, MOST_PROPAGATED, undefined)
  if (next === undefined) return
  throw tooCostly(`More than ${MOST_PROPAGATED} resources are in there: Prefer: respond-async`)
}

/** Excludes the resource itself; the order is not affected by the changes. */
async function* membersOf(call: OperationCall): AsyncGenerator<Version> {
  let after: CompartmentPosition | undefined
  do {
    const { versions, next } = await readCompartmentPage(call, PAGE, after)
    yield* after === undefined ? versions.slice(1) : versions
    after = next
  } while (after !== undefined)
}

function readCompartmentPage(
  { services, principal, type = '', id = '' }: OperationCall,
  count: number,
  after: CompartmentPosition | undefined,
) {
  const all = { types: [], since: undefined, start: undefined, end: undefined, offset: 0 }
  const request = { ...all, type: requireCompartment(type), id, count, after }
  return services.repository.compartment(principal, request)
}
