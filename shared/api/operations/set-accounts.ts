/** `$set-accounts`: the accounts of a resource, and with `propagate` of all in its compartment. */
import { badRequest, forbidden, tooCostly } from '../../errors.ts'
import { COMPARTMENTS, type Compartment } from '../../fhir/definitions.ts'
import { isObject, parseReference, type Reference, type Resource } from '../../fhir/resource.ts'
import { distinctAccounts } from '../../store/accounts.ts'
import { parseVersion } from '../../store/rows.ts'
import type { Operation, OperationCall } from '../operation.ts'
import { parametersReply } from './output.ts'
import { type Inputs, readInputs } from './parameters.ts'

const MOST_PROPAGATED = 2000

/** Others keep the accounts that were given to them alone. Errors: 400, 403, 404. */
export const setAccounts: Operation = {
  name: 'set-accounts',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    if (!principal.isProjectAdmin) throw forbidden()
    const inputs = readInputs(call, [
      { name: 'accounts', kind: 'object', many: true },
      { name: 'propagate', kind: 'flag' },
    ])
    const accounts = accountsOf(inputs)
    const { repository } = services
    const { meta } = parseVersion(await repository.read(principal, type, id))
    const members = inputs.flag('propagate') ? await membersOf(call) : []
    const replaced = new Set((meta?.accounts ?? []).map(({ reference }) => reference))
    const own = await repository.patch(principal, type, id, (current) =>
      withAccounts(current, accounts),
    )
    let updated = own.outcome === 'unchanged' ? 0 : 1
    for (const member of members) {
      const written = await repository.patch(principal, member.type, member.id, (current) => {
        const kept = (current.meta?.accounts ?? []).filter((item) => !replaced.has(item.reference))
        return withAccounts(current, distinctAccounts([...accounts, ...kept]))
      })
      if (written.outcome !== 'unchanged') updated += 1
    }
    return parametersReply([['resourcesUpdated', 'valueInteger', updated]])
  },
}

function accountsOf(inputs: Inputs): readonly Reference[] {
  const accounts = inputs.objects('accounts').map((item) => {
    const { reference } = item
    if (typeof reference === 'string' && parseReference(reference)) return { reference }
    throw badRequest('"accounts" must be references')
  })
  return distinctAccounts(accounts)
}

function withAccounts(current: Resource, accounts: readonly Reference[]): Resource {
  const meta = isObject(current.meta) ? current.meta : {}
  const { account: _, ...rest } = meta
  return { ...current, meta: { ...rest, accounts } }
}

/** Errors: 400 for a type without compartment and for a large one. */
async function membersOf({ services, principal, type, id = '' }: OperationCall) {
  const compartment = COMPARTMENTS.find((name): name is Compartment => name === type)
  if (compartment === undefined) throw badRequest(`${type} has no compartment to propagate to`)
  const { versions, next } = await services.repository.compartment(principal, {
    type: compartment,
    id,
    types: [],
    since: undefined,
    start: undefined,
    end: undefined,
    count: MOST_PROPAGATED,
    offset: 0,
    after: undefined,
  })
  if (next !== undefined) throw tooCostly(`More than ${MOST_PROPAGATED} resources are in there`)
  return versions.slice(1)
}
