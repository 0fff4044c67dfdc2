/** The consent of a person before an app gets its code, or their refusal, and the patient whom they pick. */
import { AREA_WORDS } from '../../../shared/access/grant.ts'
import { grantedScope, type SmartScope, smartScopes } from '../../../shared/access/scopes.ts'
import { badRequest, HttpError } from '../../../shared/core/errors.ts'
import { parseReference, type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import { displayName } from '../../../shared/identity/principals.ts'
import { readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { searchByQuery } from '../../../shared/rest/criteria.ts'
import { escapeValue } from '../../../shared/search/language/values.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import { clearCookie, isBoundToBrowser, loginCookie } from '../browser.ts'
import {
  audit,
  loginClientId,
  loginUserId,
  patchLogin,
  requireOpen,
  revokeLogin,
} from '../login-store.ts'
import { findClient, projectOfClient } from './apps.ts'
import type { Fields } from './fields.ts'
import { loginResult } from './login-steps.ts'
import { readOpenLogin, requireLogin } from './password-login.ts'

/** Names the app, its owner, the person and the Project, and says the scopes in words. Errors: 400. */
export async function describeConsent(services: Services, ctx: Context, id: string) {
  const login = await requireLogin(services, ctx, id)
  const client = await findClient(services, loginClientId(login) ?? '')
  const membership = parseReference(referenceIn(login.membership))?.id
  // A code shows that the second factor and the choice of a profile are done.
  if (client === undefined || membership === undefined || login.code === undefined) {
    throw badRequest('There is nothing to allow yet', 'login')
  }
  const [session, owner, user] = await Promise.all([
    services.principals.forMembership(membership),
    readOwnerName(services, client),
    readUser(services.repository, loginUserId(login) ?? ''),
  ])
  if (session === undefined || user === undefined) throw badRequest('Login revoked', 'login')
  const { principal } = session
  const scope = typeof login.scope === 'string' ? login.scope : ''
  return {
    application: typeof client.name === 'string' ? client.name : `Client ${client.id}`,
    owner,
    person: principal.profileDisplay ?? principal.profile,
    email: user.email,
    project: principal.project.name,
    redirectUri: login.redirectUri,
    scope,
    needsPatient: wantsPatient(login) && login.patient === undefined,
    scopes: scopeInWords(scope, principal.project.name),
  }
}

async function readOwnerName({ principals, config }: Services, client: Resource): Promise<string> {
  const projectId = projectOfClient(client)
  const project = projectId === undefined ? undefined : await principals.project(projectId)
  return project?.name ?? config.productName
}

/** The person says no: what was begun leads nowhere any more. Errors: 400. */
export async function denyLogin(services: Services, ctx: Context, fields: Fields): Promise<void> {
  const login = await readOpenLogin(services, ctx, fields)
  const id = login.id ?? ''
  await revokeLogin(services, id)
  clearCookie(ctx, services.config, loginCookie(id))
  audit(services, ctx, {
    kind: 'login',
    outcome: '4',
    what: 'Access denied by the person',
    who: referenceIn(login.user),
    projectId: parseReference(referenceIn(login.project))?.id,
  })
}

/** Scopes as a person reads them on the consent page. */
interface ScopeInWords {
  /** The first word that says it; empty for what no word says. */
  readonly scope: string
  readonly text: string
  /** True for what a person may leave out: access to data. */
  readonly isChoice: boolean
}

const PLAIN: Readonly<Record<string, string>> = {
  openid: 'Know who you are',
  profile: 'See your name and your profile',
  fhirUser: 'See your name and your profile',
  email: 'See your e-mail address',
  phone: 'See your phone number',
  address: 'See your postal address',
  launch: 'Know what you were looking at when you opened it',
  'launch/patient': 'Know which patient you have chosen, or were looking at when you opened it',
  'launch/encounter': 'Know which encounter you were looking at when you opened it',
  online_access: 'Keep access while you use it',
  offline: 'Keep access when you are not using it',
  offline_access: 'Keep access when you are not using it',
}
const AREAS: Readonly<Record<string, string>> = {
  [AREA_WORDS.administration]:
    'Administer the project as you may: members, clients, secrets, mails',
  [AREA_WORDS.account]: 'Change how you sign in: your password, second factor and e-mail address',
}
const VERBS = [
  ['create', 'create'],
  ['read', 'read'],
  ['update', 'change'],
  ['delete', 'delete'],
  ['search', 'search'],
] as const

/** One entry a text; a scope without access to data is worth all that the person may do, and says so. */
function scopeInWords(scope: string, project: string): readonly ScopeInWords[] {
  const words = grantedScope(scope).split(' ')
  const plain = words.flatMap((word) => {
    const text = PLAIN[word]
    return text === undefined ? [] : [{ scope: word, text, isChoice: false }]
  })
  const data = words.flatMap((word) =>
    smartScopes(word).map((smart) => ({ scope: word, text: smartInWords(smart), isChoice: true })),
  )
  // Without access to data a scope narrows nothing, and these words add nothing to it.
  const areas = words.flatMap((word) => {
    const text = AREAS[word]
    return text === undefined ? [] : [{ scope: word, text, isChoice: true }]
  })
  const all = {
    scope: '',
    text: `Do everything that you may do in ${project}`,
    isChoice: false,
  }
  return withoutTwins([...plain, ...(data.length === 0 ? [all] : [...data, ...areas])])
}

function smartInWords({ context, type, interactions, criteria }: SmartScope): string {
  if (interactions.size === 0) return 'No access: a scope that is not known here'
  const verbs = VERBS.filter(([interaction]) => interactions.has(interaction)).map(
    ([, verb]) => verb,
  )
  const what = type === '*' ? 'all kinds of records' : `records of type ${spaced(type)}`
  const where = context === 'patient' ? ' of one patient' : ' that you have access to'
  const only = criteria === undefined ? '' : `, only where ${criteria}`
  return `${sentence(verbs)} ${what}${where}${only}`
}

/** "Read, change and search". */
function sentence(verbs: readonly string[]): string {
  const text = [verbs.slice(0, -1).join(', '), verbs.at(-1)].filter(Boolean).join(' and ')
  return text.slice(0, 1).toUpperCase() + text.slice(1)
}

/** "Medication Request". */
function spaced(type: string): string {
  return type.replace(/(?<=[a-z])(?=[A-Z])/g, ' ')
}

function withoutTwins(list: readonly ScopeInWords[]): readonly ScopeInWords[] {
  return list.filter(
    ({ text, isChoice }, place) =>
      isChoice || list.findIndex((item) => item.text === text) === place,
  )
}

// * The choice of a patient, where an app that was not started from a record asks for one (`launch/patient`).
// https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html#requesting-context-with-scopes
// People choose on our page, among the patients that their membership may see; a client library that signs in by itself
// gets no patient.

const PAGE = 20
const LONGEST_NAME = 100

/** True where a person has to say which patient is meant. */
function wantsPatient(login: Resource): boolean {
  const words = String(login.scope ?? '').split(' ')
  const isStandalone = login.launch === undefined && login.profileType !== 'Patient'
  return isStandalone && isBoundToBrowser(login) && words.includes('launch/patient')
}

/** A page of the patients that the member may see. Errors: 400, 403. */
export async function listPatients(services: Services, ctx: Context, id: string) {
  const login = await requireLogin(services, ctx, id)
  const principal = await patientChooser(services, login)
  const { name, cursor } = ctx.query
  const query = new URLSearchParams({ _sort: 'name' })
  if (typeof name === 'string' && name.trim() !== '') {
    query.set('name', escapeValue(name.slice(0, LONGEST_NAME)))
  }
  const page = { count: PAGE, cursor: typeof cursor === 'string' ? cursor : undefined }
  const { versions, next } = await searchByQuery({ services, principal }, 'Patient', query, page)
  const patients = versions.map((version) => {
    const patient = parseVersion(version)
    const { birthDate, gender } = patient
    return {
      id: version.id,
      name: displayName(patient) ?? 'Patient without a name',
      birthDate,
      gender,
    }
  })
  return { patients, next }
}

/** Errors: 400 for a patient whom the member does not see. */
export async function choosePatient(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const login = await readOpenLogin(services, ctx, fields)
  const id = fields.required('patient', 'Patient')
  fields.check()
  const principal = await patientChooser(services, login)
  const reference = `Patient/${id}`
  if (parseReference(reference) === undefined) throw badRequest('Patient not found', 'patient')
  await services.repository.read(principal, 'Patient', id).catch((error: unknown) => {
    throw error instanceof HttpError ? badRequest('Patient not found', 'patient') : error
  })
  const next = await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    return { ...current, patient: { reference } }
  })
  const { profile: who, project } = principal
  audit(services, ctx, {
    kind: 'login',
    outcome: '0',
    what: `${reference} chosen for an app`,
    who,
    projectId: project.id,
  })
  return await loginResult(services, ctx, next)
}

/** The member, before any scope. A code shows that the second factor and the choice of a profile are done. */
async function patientChooser({ principals }: Services, login: Resource) {
  const membership = parseReference(referenceIn(login.membership))?.id
  if (!wantsPatient(login) || login.code === undefined || membership === undefined) {
    throw badRequest('There is no patient to choose', 'login')
  }
  const session = await principals.forMembership(membership)
  if (session === undefined) throw badRequest('Login revoked', 'login')
  return session.principal
}
