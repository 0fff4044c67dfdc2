/**
 * Creates projects, and programs with their memberships; rotates client secrets (`$rotate-secret`) and launches apps
 * (`$smart-launch`).
 */
import { randomBytes } from 'node:crypto'
import { isSameSecret } from '../access/credentials/clients.ts'
import {
  type Principal,
  type ProjectContext,
  servicePrincipal,
  systemPrincipal,
} from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import type { Config } from '../core/config/config.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import {
  isResource,
  parseReference,
  type Reference,
  type Resource,
  targetIn,
} from '../fhir/resource.ts'
import { requirePolicies } from '../identity/write-rules.ts'
import { readInputs } from '../request/parameters.ts'
import { emptyReply, textReply } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion, present } from '../store/rows/rows.ts'
import type { WriteResult } from '../store/rows/version.ts'

const BOT_TEMPLATE = `import { BotEvent, MedplumClient } from '@medplum/core';

export async function handler(medplum: MedplumClient, event: BotEvent): Promise<any> {
  // Your code here
}
`

export interface TargetProject {
  readonly id: string
  readonly name: string
}

export function newSecret(): string {
  return randomBytes(32).toString('hex')
}

/** New Projects are strict and have the default features unless others are named. */
export function projectDefaults(project: Resource, config: Config): Resource {
  return { strictMode: true, features: [...config.defaultProjectFeatures], ...project }
}

/** Validates a caller's Project. Errors: 400 for another type, or without a name. */
export function newProject(body: unknown, config: Config): Resource {
  if (!isResource(body) || body.resourceType !== 'Project') {
    throw badRequest('resourceType must be Project', 'resourceType')
  }
  if (typeof body.name !== 'string' || body.name.trim() === '') {
    throw badRequest('Project name is required', 'name')
  }
  return projectDefaults(body, config)
}

export interface NewMember {
  readonly user: Reference
  readonly profile: Reference
  readonly details?: { readonly admin?: boolean; readonly accessPolicy?: Reference } | undefined
}

/** For clients and bots, `user` and `profile` are the program. */
export async function createMembership(
  repository: Repository,
  actor: Principal,
  home: TargetProject,
  { user, profile, details = {} }: NewMember,
): Promise<WriteResult> {
  const { id, name } = home
  return await repository.create(actor, {
    resourceType: 'ProjectMembership',
    meta: { project: id },
    project: { reference: `Project/${id}`, display: name },
    user,
    profile,
    ...details,
  })
}

interface NewClient {
  readonly client: Readonly<Record<string, unknown>>
  readonly accessPolicy?: Reference | undefined
}

/** `requireOwnPolicies` has checked the policy. */
export async function createClient(
  repository: Repository,
  actor: Principal,
  home: TargetProject,
  { client, accessPolicy }: NewClient,
): Promise<WriteResult> {
  const written = await repository.create(actor, {
    ...client,
    resourceType: 'ClientApplication',
    meta: { project: home.id },
    secret: newSecret(),
  })
  await admit(repository, actor, home, { program: parseVersion(written), accessPolicy })
  return written
}

interface NewBot {
  readonly bot: Readonly<Record<string, unknown>>
  readonly accessPolicy?: Reference | undefined
}

/** Like a client, with template source; in the caller's transaction. */
export async function createBot(
  repository: Repository,
  actor: Principal,
  home: TargetProject,
  { bot, accessPolicy }: NewBot,
): Promise<WriteResult> {
  const source = await repository.create(actor, {
    resourceType: 'Binary',
    meta: { project: home.id },
    contentType: 'text/typescript',
    data: Buffer.from(BOT_TEMPLATE).toString('base64'),
  })
  const written = await repository.create(actor, {
    runtimeVersion: 'vmcontext',
    ...bot,
    resourceType: 'Bot',
    meta: { project: home.id },
    sourceCode: {
      contentType: 'text/typescript',
      title: 'index.ts',
      url: `Binary/${source.id}`,
    },
  })
  await admit(repository, actor, home, { program: parseVersion(written), accessPolicy })
  return written
}

/** Another Project may have a policy with the same id. Errors: 400 for a policy of another Project. */
export async function requireOwnPolicies(
  repository: Repository,
  project: ProjectContext,
  accessPolicy: Reference | undefined,
): Promise<void> {
  const read = (references: readonly { type: string; id: string }[]) =>
    repository.readMany(systemPrincipal(project), references)
  await requirePolicies(read, project, { accessPolicy }, false)
}

interface Admitted {
  readonly program: Resource
  readonly accessPolicy: Reference | undefined
}

async function admit(
  repository: Repository,
  actor: Principal,
  home: TargetProject,
  { program, accessPolicy }: Admitted,
): Promise<void> {
  const reference = {
    reference: `${program.resourceType}/${program.id}`,
    display: String(program.name),
  }
  const details = accessPolicy === undefined ? {} : { accessPolicy }
  await createMembership(repository, actor, home, { user: reference, profile: reference, details })
}

/** Project admins. Errors: 400, 403, 404. */
export const rotateSecret: Operation = {
  name: 'rotate-secret',
  on: [{ type: 'ClientApplication', level: 'instance' }],
  methods: ['POST'],
  inputs: { secret: 'text: The present secret', retiringSecret: 'text: The one to end' },
  text: {
    summary: 'Change the secret of a client',
    description: 'The old one stays good until it is retired by a second call.',
    answer: 'ClientApplication',
  },
  area: 'administration',
  async run(call) {
    const { services, principal, request, id = '' } = call
    if (!principal.isProjectAdmin) throw forbidden()
    const inputs = readInputs(call)
    const secret = inputs.text('secret')
    const retiring = inputs.text('retiringSecret')
    if ((secret === undefined) === (retiring === undefined)) {
      throw badRequest('Expected either secret or retiringSecret')
    }
    const change = (client: Resource): Resource => {
      if (secret !== undefined) {
        requireSame(client.secret, secret)
        return { ...client, secret: newSecret(), retiringSecret: client.secret }
      }
      requireSame(client.retiringSecret, retiring ?? '')
      const { retiringSecret: _, ...rest } = client
      return { ...rest, resourceType: client.resourceType }
    }
    const { repository } = services
    const written = await repository.patch(principal, { type: 'ClientApplication', id }, change)
    const isExtended = request.headers['x-medplum'] === 'extended'
    return textReply(200, present(written, principal, isExtended))
  },
}

function requireSame(stored: unknown, given: string): void {
  if (typeof stored !== 'string' || !isSameSecret(stored, given)) {
    throw badRequest('Provided secret does not match client')
  }
}

/** Requires read access to the client and the launch context. Errors: 400, 403, 404. */
export const smartLaunch: Operation = {
  name: 'smart-launch',
  on: [{ type: 'ClientApplication', level: 'instance' }],
  methods: ['GET', 'POST'],
  inputs: {
    patient: 'text: Id of the patient',
    encounter: 'text: Id of the encounter',
    fhirContext: 'reference*: Further open resources, such as ImagingStudy/id',
  },
  text: { summary: 'Begin an EHR launch', answer: 'Parameters' },
  acts: true,
  async run(call) {
    const { services, principal, id = '' } = call
    const { repository, config } = services
    const client = parseVersion(await repository.read(principal, 'ClientApplication', id))
    const { launchUri } = client
    if (typeof launchUri !== 'string' || !URL.canParse(launchUri)) {
      throw badRequest('Client has no launchUri', 'ClientApplication.launchUri')
    }
    const context = await readContext(call)
    const launch = await repository.create(servicePrincipal(SYSTEM_PROJECT, principal), {
      resourceType: 'SmartAppLaunch',
      meta: { project: client.meta?.project ?? principal.project.id },
      ...context,
    })
    const url = new URL(launchUri)
    url.searchParams.set('iss', `${config.baseUrl}fhir/R4/`)
    url.searchParams.set('launch', launch.id)
    return emptyReply(302, { Location: url.href })
  },
}

async function readContext(call: OperationCall) {
  const { services, principal } = call
  const inputs = readInputs(call)
  const fhirContext = await readFurther(call, inputs.texts('fhirContext'))
  const further = fhirContext.length === 0 ? {} : { fhirContext }
  const patient = inputs.text('patient')
  const encounter = inputs.text('encounter')
  if ((patient === undefined) === (encounter === undefined)) {
    throw badRequest('Expected either patient or encounter')
  }
  if (patient !== undefined) {
    const found = await services.repository.read(principal, 'Patient', parseId('Patient', patient))
    return { ...further, patient: { reference: `Patient/${found.id}` } }
  }
  const id = parseId('Encounter', encounter ?? '')
  const found = await services.repository.read(principal, 'Encounter', id)
  const subject = targetIn(parseVersion(found).subject)
  return {
    ...further,
    encounter: { reference: `Encounter/${found.id}` },
    ...(subject?.type === 'Patient' ? { patient: { reference: `Patient/${subject.id}` } } : {}),
  }
}

/** https://hl7.org/fhir/smart-app-launch/STU2.2/scopes-and-launch-context.html#fhir-context */
async function readFurther(
  { services, principal }: OperationCall,
  references: readonly string[],
): Promise<readonly Reference[]> {
  if (references.length > MOST_FURTHER) {
    throw badRequest(`A launch may have ${MOST_FURTHER} further resources`, 'fhirContext')
  }
  return await Promise.all(
    references.map(async (text) => {
      const target = parseReference(text)
      if (target === undefined) throw badRequest('Expected Type/id', 'fhirContext')
      if (target.type === 'Patient' || target.type === 'Encounter') {
        throw badRequest(
          'Name the patient and the encounter by their own parameters',
          'fhirContext',
        )
      }
      await services.repository.read(principal, target.type, target.id)
      return { reference: `${target.type}/${target.id}` }
    }),
  )
}

const MOST_FURTHER = 20

function parseId(type: string, text: string): string {
  const parsed = parseReference(text)
  if (parsed?.type === type) return parsed.id
  if (/^[A-Za-z0-9\-.]{1,64}$/.test(text)) return text
  throw badRequest(`Expected the id of a ${type}`)
}
