/** Consent or refusal of a person, required before an app gets its code. */

import { AREA_WORDS } from '../../../shared/access/grant.ts'
import { grantedScope, type SmartScope, smartScopes } from '../../../shared/access/scopes.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, referenceIn, targetIn } from '../../../shared/fhir/resource.ts'
import { readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { clearCookie, loginCookie } from '../browser.ts'
import { loginClientId, loginUserId, revokeLogin } from '../login-store.ts'
import { audit } from '../sign-in-audit.ts'
import { findClient, projectOfClient } from './apps.ts'
import type { SignInFields } from './fields.ts'
import { openLogin, requireLogin } from './login-steps.ts'
import { wantsPatient } from './patient-choice.ts'

/** Returns the app, its owner, the person, the Project and the scopes in words. Errors: 400. */
export async function describeConsent(services: Services, ctx: Context, id: string) {
  const login = await requireLogin(services, ctx, id)
  const client = await findClient(services, loginClientId(login) ?? '')
  const membership = targetIn(login.membership)?.id
  // A code shows that the second factor and the choice of a profile are done.
  if (client === undefined || membership === undefined || login.code === undefined) {
    throw badRequest('The sign-in is not ready for consent', 'login')
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

/** Records the refusal and ends the sign-in. Errors: 400. */
export async function denyLogin(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<void> {
  const login = await openLogin(services, ctx, fields)
  await revokeLogin(services, login)
  clearCookie(ctx, services.config, loginCookie(login.id ?? ''))
  audit(services, ctx, {
    kind: 'login',
    outcome: '4',
    what: 'Access denied by the person',
    who: referenceIn(login.user),
    projectId: targetIn(login.project)?.id,
  })
}

interface ScopeInWords {
  /** The first scope word with this meaning; empty if none has it. */
  readonly scope: string
  readonly text: string
  /** True for access to data, which the person may withhold. */
  readonly isChoice: boolean
}

const SCOPE_TEXTS: Readonly<Record<string, string>> = {
  openid: 'Know who you are',
  profile: 'See your name and your profile',
  fhirUser: 'See your name and your profile',
  email: 'See your e-mail address',
  phone: 'See your phone number',
  address: 'See your postal address',
  launch: 'Know the record that you opened it from',
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

/**
 * Returns one entry per text. A scope without data access grants all rights of the person, and the texts state that.
 */
function scopeInWords(scope: string, project: string): readonly ScopeInWords[] {
  const words = grantedScope(scope).split(' ')
  const plain = words.flatMap((word) => {
    const text = SCOPE_TEXTS[word]
    return text === undefined ? [] : [{ scope: word, text, isChoice: false }]
  })
  const data = words.flatMap((word) =>
    smartScopes(word).map((smart) => ({ scope: word, text: smartInWords(smart), isChoice: true })),
  )
  // Such a scope restricts nothing, so these words add nothing to it.
  const areas = words.flatMap((word) => {
    const text = AREAS[word]
    return text === undefined ? [] : [{ scope: word, text, isChoice: true }]
  })
  const all = {
    scope: '',
    text: `Do everything that you may do in ${project}`,
    isChoice: false,
  }
  return withoutDuplicates([...plain, ...(data.length === 0 ? [all] : [...data, ...areas])])
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

/** Returns "Read, change and search". */
function sentence(verbs: readonly string[]): string {
  const text = [verbs.slice(0, -1).join(', '), verbs.at(-1)].filter(Boolean).join(' and ')
  return text.slice(0, 1).toUpperCase() + text.slice(1)
}

/** Returns "Medication Request". */
function spaced(type: string): string {
  return type.replace(/(?<=[a-z])(?=[A-Z])/g, ' ')
}

function withoutDuplicates(list: readonly ScopeInWords[]): readonly ScopeInWords[] {
  return list.filter(
    ({ text, isChoice }, place) =>
      isChoice || list.findIndex((item) => item.text === text) === place,
  )
}
