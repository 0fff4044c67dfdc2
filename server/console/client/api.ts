/** Hooks for reads and writes over the API client. */
import { notifications } from '@mantine/notifications'
import { isOperationOutcome, OperationOutcomeError } from '@medplum/core'
import type { Bundle, BundleEntry, BundleEntryResponse, Resource } from '@medplum/fhirtypes'
import {
  type UseMutationResult,
  type UseQueryResult,
  useInfiniteQuery,
  useMutation,
  useQuery,
  useQueryClient,
} from '@tanstack/react-query'
import { fill, texts } from '../texts/texts.ts'
import { forget, readKept } from './drafts.ts'
import { fetchOnce } from './once.ts'
import { problemLines } from './problem.tsx'
import { medplum, type ReadOptions } from './session.ts'

interface GetOptions {
  readonly enabled?: boolean
  /** Refetch interval in ms. */
  readonly every?: number | false
  /** Keeps the digits of numbers, for records that are written back. */
  readonly isExact?: boolean
}

/** Returns the response to a GET below the service root, `fhir/R4/…` or `admin/…`. */
export function useGet<T>(path: string, options: GetOptions = {}): UseQueryResult<T> {
  const { enabled = true, every = false, isExact = false } = options
  return useQuery({
    queryKey: isExact ? [path, 'exact'] : [path],
    queryFn: ({ signal }) => {
      const options: ReadOptions = { cache: 'no-store', signal, isExact }
      return medplum.get<T>(path, options)
    },
    enabled,
    refetchInterval: every,
  })
}

/** Returns the pages of a Bundle that have been read; `fetchNextPage` reads one more. */
export function usePages<T extends Resource>(path: string, options: GetOptions = {}) {
  const { every = false, isExact = false } = options
  return useInfiniteQuery({
    queryKey: [path, 'pages', isExact],
    queryFn: ({ signal, pageParam }) => {
      const options: ReadOptions = { cache: 'no-store', signal, isExact }
      return medplum.get<Bundle<T>>(pageParam, options)
    },
    initialPageParam: path,
    getNextPageParam: ({ link }) => link?.find(({ relation }) => relation === 'next')?.url,
    refetchInterval: every,
  })
}

export interface SendOptions<I, O> {
  readonly send: (input: I) => Promise<O>
  readonly done?: string | undefined
  /** Draft key. A save clears a draft that has not changed since, even if the page is left at once. */
  readonly draft?: string | undefined
  readonly after?: ((output: O, input: I) => void) | undefined
  /** False where the page itself shows errors. */
  readonly notify?: boolean
  readonly reread?: readonly string[] | undefined
}

/** Sends a change, shows the result, and refetches the page's data. */
export function useSend<I = void, O = unknown>(
  options: SendOptions<I, O>,
): UseMutationResult<O, unknown, I, string | undefined> {
  const queries = useQueryClient()
  const { send, done, draft, after, notify = true, reread = [] } = options
  return useMutation<O, unknown, I, string | undefined>({
    mutationFn: send,
    onMutate: () => readKept(draft),
    onSuccess: async (output, input, sent) => {
      if (readKept(draft) === sent) forget(draft)
      await queries.invalidateQueries()
      after?.(output, input)
      // After it, people may leave: text typed meanwhile is based on the saved version by then.
      if (done) notifications.show({ message: done, color: 'green' })
    },
    onError: (error) => {
      for (const path of reread) void queries.invalidateQueries({ queryKey: [path] })
      if (notify) notifyProblem(error, texts.common.problem)
    },
  })
}

export function notifyProblem(error: unknown, title: string): void {
  const message = problemLines(error)
    .map(({ text }) => text)
    .join('\n')
  notifications.show({ title, message, color: 'red', autoClose: 10_000 })
}

/** Replaces a resource, unless it is no longer of that version. */
export async function replaceVersion<T>(
  path: string,
  body: unknown,
  versionId: string | undefined,
): Promise<T> {
  const headers = { 'If-Match': `W/"${versionId}"` }
  return await medplum.put(path, body, undefined, { headers })
}

/** Returns the error of an entry of a batch. */
export function entryError(response: BundleEntryResponse | undefined): Error {
  const outcome = response?.outcome
  if (isOperationOutcome(outcome)) return new OperationOutcomeError(outcome)
  return new Error(response?.status ?? texts.common.problem)
}

/** Sends searches as a batch. Errors: also of an entry that the service cannot answer for now. */
export async function searchBatch(urls: readonly string[]): Promise<readonly BundleEntry[]> {
  const answer: Bundle = await medplum.executeBatch({
    resourceType: 'Bundle',
    type: 'batch',
    entry: urls.map((url) => ({ request: { method: 'GET' as const, url } })),
  })
  const { entry = [] } = answer
  const failed = entry.find(({ response }) => /^(?:5|429)/.test(response?.status ?? ''))
  if (failed) throw entryError(failed.response)
  return entry
}

export interface SignedInit extends RequestInit {
  readonly headers?: Readonly<Record<string, string>>
}

/**
 * Sends a request with the person's token, for answers of which more than the body matters. Errors: the end of the
 * session.
 */
export async function fetchSigned(path: string, init: SignedInit): Promise<Response> {
  await medplum.refreshIfExpired()
  const answer = await fetchWithToken(path, init)
  // A bot may answer with any status.
  if (answer.status !== 401 || answer.headers.has('X-Bot-Run-Id')) return answer
  // Renews the token, or ends the session.
  await medplum.get('auth/me', { cache: 'no-store' })
  return await fetchWithToken(path, init)
}

async function fetchWithToken(path: string, init: SignedInit): Promise<Response> {
  const headers = { ...init.headers, Authorization: `Bearer ${medplum.getAccessToken()}` }
  return await fetchOnce(`/${path}`, { ...init, headers })
}

/** Returns the error of an answer, in the service's words unless it comes from a proxy. */
export async function readError(answer: Response): Promise<Error> {
  const body: unknown = await answer.json().catch(() => undefined)
  if (isOperationOutcome(body)) return new OperationOutcomeError(body)
  return new Error(fill(texts.common.unexpected, { status: answer.status }))
}
