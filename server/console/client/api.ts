/** How pages read and change things: one hook for each, over the client of the API. */
import { notifications } from '@mantine/notifications'
import {
  type UseMutationResult,
  type UseQueryResult,
  useMutation,
  useQuery,
  useQueryClient,
} from '@tanstack/react-query'
import { texts } from '../texts/texts.ts'
import { forget } from './drafts.ts'
import { problemLines } from './problem.tsx'
import { medplum, type ReadOptions } from './session.ts'

interface GetOptions {
  readonly enabled?: boolean
  /** Milliseconds after which it is read again. */
  readonly every?: number | false
  /** Numbers keep their digits: for records that are written back. */
  readonly isExact?: boolean
}

/** The answer to a GET of an address of the service, `fhir/R4/…` or `admin/…`. */
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

interface SendOptions<I, O> {
  readonly send: (input: I) => Promise<O>
  /** Shown when it has worked. */
  readonly done?: string
  /** Key of the draft that it saves: whoever leaves at once does not find it again. */
  readonly draft?: string
  readonly after?: (output: O) => void
  /** False where the page itself shows what went wrong. */
  readonly notify?: boolean
  /** Paths that are read again when it was refused. */
  readonly reread?: readonly string[]
}

/** Changes something: says that it has worked, or why not, and reads anew whatever is on the page. */
export function useSend<I = void, O = unknown>(
  options: SendOptions<I, O>,
): UseMutationResult<O, unknown, I> {
  const queries = useQueryClient()
  const { send, done, draft, after, notify = true, reread = [] } = options
  return useMutation<O, unknown, I>({
    mutationFn: send,
    onSuccess: async (output) => {
      if (draft) forget(draft)
      if (done) notifications.show({ message: done, color: 'green' })
      await queries.invalidateQueries()
      after?.(output)
    },
    onError: (error) => {
      for (const path of reread) void queries.invalidateQueries({ queryKey: [path] })
      if (!notify) return
      const message = problemLines(error)
        .map(({ text }) => text)
        .join('\n')
      notifications.show({ title: texts.common.problem, message, color: 'red', autoClose: 10_000 })
    },
  })
}
