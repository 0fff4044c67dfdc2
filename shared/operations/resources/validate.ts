/** Validates a resource without storing it: https://hl7.org/fhir/R4/resource-operation-validate.html */
import { withoutSecrets } from '../../access/fields/fields.ts'
import { may } from '../../access/policy.ts'
import {
  allOk,
  badRequest,
  badStructure,
  forbidden,
  HttpError,
  type Issue,
  issue,
  notFound,
  outcome,
} from '../../core/errors.ts'
import { parseJson, withoutEmpty, withoutEmptyMembers } from '../../fhir/json.ts'
import { isResource, type Resource, toObjects } from '../../fhir/resource.ts'
import { readJson } from '../../request/negotiate.ts'
import { readInputs } from '../../request/parameters.ts'
import { outcomeReply } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { findProfiles, requireUsable, withDefaultProfiles } from '../../rest/interaction.ts'
import { RESPONSE, responseIssues } from '../../rest/questionnaires.ts'
import { normalId } from '../../store/rows/context.ts'
import { boundCodes } from '../../terminology/bound-codes.ts'
import { listClaims } from '../../validation/profile-run.ts'
import { toFhirPath } from '../../validation/shapes.ts'
import { validate as validateResource } from '../../validation/validate.ts'

export const validate: Operation = {
  name: 'validate',
  on: [{ level: 'type' }, { level: 'instance' }],
  standard: 'Resource',
  methods: ['GET', 'POST'],
  inputs: {
    resource: 'resource: The resource, in place of the stored one',
    mode: 'text: create, update, delete or profile',
    profile: 'text: Canonical address',
  },
  text: {
    summary: 'Check a resource',
    description: 'Stores nothing.',
    body: 'Resource',
    example: { resourceType: 'Patient', birthDate: 'yesterday' },
    answer: 'OperationOutcome',
  },
  async run(call) {
    const { principal, type = '', id } = call
    if (!may(principal, type, id === undefined ? 'search' : 'read')) throw forbidden()
    const asked = readAsked(call)
    const issues = await validateInput(call, asked)
    const isValid = !issues.some(isError)
    if (isValid) return outcomeReply(200, outcome('ok', ...allOk.issue, ...issues))
    return outcomeReply(asked.isBare ? 400 : 200, outcome(undefined, ...issues))
  },
}

function isError({ severity }: Issue): boolean {
  return severity === 'error'
}

const MODES = ['create', 'update', 'delete', 'profile'] as const
type Mode = (typeof MODES)[number]

interface ValidateInput {
  readonly mode: Mode | undefined
  readonly profile: string | undefined
  /** Defaults to the stored resource. */
  readonly resource: unknown
  /** The body is the resource itself, not Parameters, so an invalid body is a caller error. */
  readonly isBare: boolean
}

/** Errors: 400, 415. */
function readAsked(call: OperationCall): ValidateInput {
  const { request, type } = call
  const hasBody = request.method !== 'GET' && request.body !== undefined && request.body.length > 0
  const body = hasBody ? readJson(request) : undefined
  const isBare = hasBody && !(isResource(body) && isCall(body, type))
  // A bare resource has its parameters in the query.
  const asking = isBare ? { ...call, request: { ...request, body: undefined } } : call
  const inputs = readInputs(asking)
  const asked = { mode: parseMode(inputs.text('mode')), profile: inputs.text('profile') }
  return { ...asked, resource: isBare ? body : inputs.resource('resource'), isBare }
}

/** True when the Parameters are the call, not the resource to validate. */
function isCall({ resourceType, parameter }: Resource, type: string | undefined): boolean {
  if (resourceType !== 'Parameters') return false
  return type !== 'Parameters' || toObjects(parameter).some(({ name }) => name === 'resource')
}

function parseMode(text: string | undefined): Mode | undefined {
  if (text === undefined) return undefined
  const mode = MODES.find((name) => name === text)
  if (mode === undefined) throw badRequest(`mode must be one of ${MODES.join(', ')}`, 'mode')
  return mode
}

/** Errors: 400 for missing input; 403, 404 and 410 of the read. */
async function validateInput(call: OperationCall, asked: ValidateInput): Promise<readonly Issue[]> {
  const { principal, type = '', id } = call
  const { mode, profile } = asked
  if (mode === 'profile' && profile === undefined) {
    throw badRequest('Missing required parameter "profile"', 'profile')
  }
  if (mode === 'delete') {
    if (id === undefined) throw badRequest('mode delete needs the id of a resource', 'mode')
    await readStored(call)
    if (!may(principal, type, 'delete')) throw forbidden()
    return []
  }
  const resource = asked.resource ?? (id === undefined ? undefined : await readStored(call))
  if (resource === undefined) throw badRequest('Missing required parameter "resource"', 'resource')
  const found = isResource(resource) ? resource.resourceType : undefined
  if (!isResource(resource) || found !== type) {
    const text = String(found).slice(0, 64)
    throw badStructure(`Incorrect resource type: expected ${type}, but found ${text}`)
  }
  return [...identityIssues(resource, id, mode), ...(await contentIssues(call, resource, profile))]
}

async function readStored(call: OperationCall): Promise<Resource> {
  const { services, principal, type = '', id = '' } = call
  const { content } = await services.repository.read(principal, type, id)
  if (content === undefined) throw notFound()
  // Without secrets: the profile may be the caller's own and must not probe them.
  return withoutSecrets(parseJson(content) as Resource)
}

/** Returns the id and type issues of an update with this body. */
function identityIssues(
  resource: Resource,
  id: string | undefined,
  mode: Mode | undefined,
): readonly Issue[] {
  if (id === undefined || (mode !== undefined && mode !== 'update')) return []
  if (resource.id === undefined) {
    return mode === 'update' ? [issue('error', 'invalid', 'Missing id', { expression: 'id' })] : []
  }
  const isSame = typeof resource.id === 'string' && normalId(resource.id) === id
  return isSame ? [] : [issue('error', 'invalid', 'Incorrect resource ID', { expression: 'id' })]
}

async function contentIssues(
  call: OperationCall,
  sent: Resource,
  profile: string | undefined,
): Promise<readonly Issue[]> {
  const { project } = call.principal
  const strict = project.strictMode
  const resource = withDefaultProfiles(
    strict ? withoutEmptyMembers(sent) : withoutEmpty(sent),
    project,
  )
  const place = { resource, root: resource, steps: [resource.resourceType] }
  const asked = { ...place, canonicals: profile === undefined ? [] : [profile] }
  const claims = listClaims(resource).map((claim) => {
    if (claim.resource !== resource) return claim
    return { ...claim, canonicals: claim.canonicals.filter((url) => url !== profile) }
  })
  const { profiles, unknown } = await findProfiles(call, claims)
  const wanted = await findProfiles(call, [asked])
  const all = [...profiles, ...wanted.profiles]
  const valueSets = all.flatMap((item) => item.profile.valueSets)
  const bound = await boundCodes(call.services, project, valueSets, resource)
  const found = validateResource(resource, {
    strict,
    profiles: all,
    codes: bound.codes,
    takesCodes: project.takesCodes,
    thorough: true,
  })
  return [
    ...found,
    ...(found.some(isError) ? [] : await writeRuleIssues(call, resource)),
    ...(await questionnaireIssues(call, resource)),
    ...bound.unknown.map((url) => issue('warning', 'not-found', `Unknown value set "${url}"`)),
    ...unknown.map(({ canonical, steps }) => {
      const path = toFhirPath([...steps, 'meta', 'profile'])
      return issue('warning', 'not-found', `Unknown profile "${canonical}"`, { expression: path })
    }),
    // A resource must not count as checked against a missing profile.
    ...wanted.unknown.map(({ canonical }) =>
      issue('error', 'not-found', `Unknown profile "${canonical}"`),
    ),
  ]
}

/** Applies the write rules of the type, such as SearchParameter, AccessPolicy or ClientApplication. */
async function writeRuleIssues(call: OperationCall, resource: Resource): Promise<readonly Issue[]> {
  try {
    call.services.repository.requireForm(call.principal, resource)
    await requireUsable(call, resource)
    return []
  } catch (error) {
    if (error instanceof HttpError && error.status < 500) return error.outcome.issue
    throw error
  }
}

async function questionnaireIssues(
  { services, principal }: OperationCall,
  resource: Resource,
): Promise<readonly Issue[]> {
  if (resource.resourceType !== RESPONSE) return []
  return responseIssues(services, principal, resource, true)
}
