/** The signed-in person: API client, sign-in redirects and permissions. */
import { ClientStorage, MedplumClient, type MedplumRequestOptions } from '@medplum/core'
import type { AccessPolicy, Project, ProjectMembership } from '@medplum/fhirtypes'
import { createContext, useContext } from 'react'
import { texts } from '../texts/texts.ts'
import { keepDrafts, leaveQuietly, ownDrafts } from './drafts.ts'
import { keepsDigits, parseExact } from './exact.ts'
import { fetchOnce } from './once.ts'
import { holdLogin } from './tab-login.ts'

const BASE = '/console'
const CLIENT_ID = 'botica-console'
const RETURN = 'botica-return'
const STATE = 'pkceState'
/** The Project of the last sign-in in this tab, which the next one is for. */
const PROJECT = 'botica-project'

/** A second copy: the API client clears the whole session storage when a session ends. */
let lastProject: string | undefined

/** The client tries a few times without a pause. */
const OUTAGE_PAUSE_MS = 500

const listeners = new Set<() => void>()
let isEnded = false
let isLeaving = false

export interface ReadOptions extends MedplumRequestOptions {
  /** Keeps the digits of numbers, for records that are written back. Errors: an unsupported browser. */
  readonly isExact?: boolean
}

/**
 * Blocks responses once the page leaves for sign-in: a late 401 would make the client clear the session storage, which
 * the return needs. Errors: a token that cannot be renewed now, as the client drops the login for any other answer.
 */
async function fetchUntilLeaving(input: RequestInfo | URL, init?: ReadOptions): Promise<Response> {
  if (init?.isExact && !keepsDigits) throw new Error(texts.app.oldBrowser)
  const answer = await fetchOnce(input, init)
  if (isLeaving) return await new Promise<never>(() => undefined)
  if (isTokenOutage(input, answer)) {
    await new Promise((resolve) => setTimeout(resolve, OUTAGE_PAUSE_MS))
    throw new TypeError(`No token: status ${answer.status}`)
  }
  if (init?.isExact) answer.json = async () => parseExact(await answer.text())
  return answer
}

function isTokenOutage(input: RequestInfo | URL, { status }: Response): boolean {
  return String(input).endsWith('/oauth2/token') && (status === 429 || status >= 500)
}

/** Tokens are stored per tab. */
export const medplum = new MedplumClient({
  baseUrl: `${location.origin}/`,
  clientId: CLIENT_ID,
  fetch: fetchUntilLeaving,
  storage: new ClientStorage(sessionStorage),
  cacheTime: 0,
  onUnauthenticated() {
    keepDrafts()
    keepProject(lastProject)
    isEnded = true
    for (const listener of listeners) listener()
  },
})

function keepProject(id: string | undefined): void {
  lastProject = id
  if (id !== undefined) sessionStorage.setItem(PROJECT, id)
}

export const sessionEnd = {
  subscribe(listener: () => void) {
    listeners.add(listener)
    return () => listeners.delete(listener)
  },
  isEnded: () => isEnded,
}

export interface Me {
  readonly project: Project & { readonly id: string }
  readonly membership: ProjectMembership
  readonly profile: { readonly resourceType: string; readonly id?: string; readonly name?: unknown }
  readonly accessPolicy?: AccessPolicy
  readonly user?: { readonly email?: string }
  readonly security?: { readonly memberships?: readonly ProjectMembership[] }
}

/**
 * Completes the sign-in, or leaves for the sign-in page and never resolves. Errors: those of the sign-in page or of an
 * invalid code.
 */
export async function signedIn(): Promise<void> {
  const named = /^\/console\/p\/([\da-f-]{36})$/.exec(location.pathname)?.[1]
  if (named !== undefined) return await openProject(named)
  const query = new URLSearchParams(location.search)
  const isAnswer = location.pathname === BASE && query.has('state')
  if (isAnswer) await takeAnswer(query)
  const login = medplum.getActiveLogin()
  if (login !== undefined && (await holdLogin(login.accessToken))) return
  medplum.clearActiveLogin()
  await startSignIn()
}

async function takeAnswer(query: URLSearchParams): Promise<void> {
  const isOurs = query.get('state') === sessionStorage.getItem(STATE)
  const code = query.get('code')
  const target = sessionStorage.getItem(RETURN) ?? BASE
  history.replaceState(null, '', target)
  const refusal = query.get('error_description')
  if (refusal !== null) throw new Error(refusal)
  // Codes requested by another tab are not redeemed.
  if (!isOurs || code === null) return await startSignIn()
  await medplum.processCode(code, { redirectUri: location.origin + BASE })
  sessionStorage.removeItem(RETURN)
  sessionStorage.removeItem(STATE)
}

/** Leaves for the sign-in page of the Project of this tab, or of the one that the person chooses. */
export async function startSignIn(): Promise<never> {
  isLeaving = true
  leaveQuietly()
  const project = sessionStorage.getItem(PROJECT)
  sessionStorage.setItem(RETURN, location.pathname + location.search)
  const pkce = await medplum.startPkce()
  const query = new URLSearchParams({
    response_type: 'code',
    state: sessionStorage.getItem(STATE) ?? '',
    client_id: CLIENT_ID,
    redirect_uri: location.origin + BASE,
    scope: 'openid profile offline_access',
    code_challenge: pkce.codeChallenge,
    code_challenge_method: pkce.codeChallengeMethod,
    ...(project === null ? {} : { project_id: project }),
  })
  location.assign(`/oauth2/authorize?${query}`)
  return await new Promise<never>(() => undefined)
}

/** Signs in to another Project, with the person's session if it is good for that. */
export async function openProject(id: string): Promise<never> {
  leaveQuietly()
  keepProject(id)
  history.replaceState(null, '', BASE)
  return await startSignIn()
}

export async function signOut(): Promise<void> {
  leaveQuietly()
  lastProject = undefined
  await medplum.signOut().catch(() => medplum.clear())
  sessionStorage.removeItem(PROJECT)
  location.assign(BASE)
}

const MeContext = createContext<Me | undefined>(undefined)
export const MeProvider = MeContext.Provider

/** Returns the signed-in user, keeps their Project for the next sign-in in this tab, and opens their drafts. */
export async function readMe(): Promise<Me> {
  const me: Me = await medplum.get('auth/me', { cache: 'no-store' })
  keepProject(me.project.id)
  ownDrafts(me.membership.id ?? '')
  return me
}

export function useMe(): Me {
  const me = useContext(MeContext)
  if (me === undefined) throw new Error('useMe outside of MeProvider')
  return me
}

type Interaction = 'read' | 'search' | 'create' | 'update' | 'delete'

/** A hint for the display; the server decides. */
export function mayDo(me: Me, type: string, interaction: Interaction = 'search'): boolean {
  const entries = me.accessPolicy?.resource
  if (entries === undefined || isAdmin(me)) return true
  return entries.some(({ resourceType, interaction: listed, readonly: isReadOnly }) => {
    if (resourceType !== '*' && resourceType !== type) return false
    if (interaction === 'read' || interaction === 'search') {
      return listed === undefined || listed.includes(interaction)
    }
    return isReadOnly !== true && (listed === undefined || listed.includes(interaction))
  })
}

export function isAdmin({ membership, project }: Me): boolean {
  return membership.admin === true || project.superAdmin === true
}

export function isSuperAdmin({ project }: Me): boolean {
  return project.superAdmin === true
}
