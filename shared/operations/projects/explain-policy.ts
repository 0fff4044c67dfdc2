/** `$explain` of AccessPolicy: a member's access to a resource or type, and the deciding entries. */
import { type Grant, INTERACTIONS, type Interaction } from '../../access/grant.ts'
import { outranks } from '../../access/guarded/rights.ts'
import { grantsFor, may, toPolicyEntry } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { narrowed } from '../../access/scopes.ts'
import { badRequest, forbidden, HttpError, notFound } from '../../core/errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { parseReference } from '../../fhir/resource.ts'
import { type Output, parametersReply, readInputs } from '../../request/parameters.ts'
import { fhirBases } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { parseSearch } from '../../search/language/search.ts'
import type { Repository } from '../../store/repository.ts'

export const explainPolicy: Operation = {
  name: 'explain',
  on: [{ type: 'AccessPolicy', level: 'type' }],
  methods: ['POST'],
  inputs: {
    membership: 'text!: Reference of the member',
    resource: 'text: Reference of the resource to read or write',
    search: 'text: A search',
  },
  text: { summary: 'Explain the access of a member', answer: 'Parameters' },
  area: 'administration',
  async run(call) {
    const { services, principal } = call
    if (!principal.isProjectAdmin) throw forbidden()
    const inputs = readInputs(call)
    const membership = inputs.required('membership').replace(/^ProjectMembership\//, '')
    // The read checks that it belongs to the Project.
    await services.repository.read(principal, 'ProjectMembership', membership)
    const session = await services.principals.forMembership(membership)
    if (session === undefined) throw notFound()
    const member = narrowed(session.principal, principal.scope, principal.patient)
    // A count of resources hidden from the caller would answer guesses about them.
    if (outranks(member, principal)) throw forbidden()
    const resource = inputs.text('resource')
    const search = inputs.text('search')
    if ((resource === undefined) === (search === undefined)) {
      throw badRequest('Give either a resource or a search', 'resource')
    }
    return resource === undefined
      ? explainSearch(call, member, search ?? '')
      : explainResource(call, member, resource)
  },
}

async function explainResource(
  { services, principal }: OperationCall,
  member: Principal,
  resource: string,
) {
  const reference = parseReference(resource)
  if (reference === undefined || !isResourceType(reference.type)) {
    throw badRequest(`Not a reference to a resource: ${resource.slice(0, 100)}`, 'resource')
  }
  const { type, id } = reference
  await services.repository.read(principal, type, id)
  const decisions = await services.repository.decisions(member, type, id)
  return parametersReply([
    ['type', 'valueCode', type],
    ...INTERACTIONS.map((interaction) => {
      const decision = may(member, type, interaction) ? decisions[interaction] : undefined
      const why = explainDecision(member, type, interaction, decision)
      return ['interaction', 'part', decisionParts(interaction, decision, why)] as const
    }),
    ...checkedEntries(services.repository, member, type),
  ])
}

function explainDecision(
  member: Principal,
  type: string,
  interaction: Interaction,
  decision: Grant | 'all' | undefined,
): string {
  if (decision === 'all') return 'No policy limits it'
  if (decision !== undefined) return `${decision.source} is the first entry that fits`
  if (may(member, type, interaction)) return 'The criteria of no entry fit'
  return 'No entry allows the interaction with the type'
}

function decisionParts(
  interaction: Interaction,
  decision: Grant | 'all' | undefined,
  why: string,
): readonly Output[] {
  const { hidden, readonly } = decision === undefined || decision === 'all' ? NO_FIELDS : decision
  return [
    ['code', 'valueCode', interaction],
    ['allowed', 'valueBoolean', decision !== undefined],
    ['reason', 'valueString', why],
    ...hidden.map((path): Output => ['hidden', 'valueString', path]),
    ...readonly.map((path): Output => ['readonly', 'valueString', path]),
  ]
}

const NO_FIELDS = { hidden: [], readonly: [] }

/** Returns the entries checked for the type, in order, with resolved parameters. */
function checkedEntries(repository: Repository, member: Principal, type: string) {
  const tried = new Set(
    INTERACTIONS.flatMap((interaction) => grantsFor(member, type, interaction) ?? []),
  )
  return [...tried].map((grant): Output => {
    const parts: readonly Output[] = [
      ['source', 'valueString', grant.source],
      ['compiled', 'valueString', JSON.stringify(toPolicyEntry(grant))],
      ['sql', 'valueString', repository.criteriaSql(member, type, grant)],
    ]
    return ['entry', 'part', parts]
  })
}

async function explainSearch({ services }: OperationCall, member: Principal, search: string) {
  const [type = '', query = ''] = search.split(/\?(.*)/s)
  if (!isResourceType(type)) throw badRequest(`Unknown resource type: ${type}`, 'search')
  const request = parseSearch(type, query, {
    fhirUrls: fhirBases(services, member.project.id),
    own: member.project.parameters,
  })
  const isAllowed = may(member, type, 'search')
  const grants = grantsFor(member, type, 'search')
  const reason = !isAllowed
    ? 'No entry allows a search of the type'
    : grants === undefined
      ? 'No policy limits it'
      : `For each record the first of ${grants.length} policy entries that fits decides`
  const total = isAllowed ? await countVisible(services.repository, member, request) : undefined
  return parametersReply([
    ['type', 'valueCode', type],
    ['allowed', 'valueBoolean', isAllowed && total !== 'refused'],
    ['reason', 'valueString', total === 'refused' ? HIDDEN : reason],
    ['total', 'valueInteger', total === 'refused' ? undefined : total],
    ...checkedEntries(services.repository, member, type),
  ])
}

const HIDDEN = 'The search reads an element that every entry hides'

async function countVisible(
  repository: OperationCall['services']['repository'],
  member: Principal,
  request: ReturnType<typeof parseSearch>,
): Promise<number | undefined | 'refused'> {
  try {
    const page = await repository.search(member, { ...request, count: 0, total: 'accurate' })
    return page.total
  } catch (error) {
    if (error instanceof HttpError && error.status === 403) return 'refused'
    throw error
  }
}
