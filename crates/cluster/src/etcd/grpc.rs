// SPDX-License-Identifier: Apache-2.0
//! gRPC requests of etcd, with the headers that etcd expects.

use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{AuthenticateRequest, EtcdRequest};

/// The greatest answer that is accepted, in bytes. etcd accepts values of 1.5 MiB by default.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// The number of requests that can wait in a stream.
// BOUND: the sender waits.
const STREAM_REQUESTS: usize = 100;

/// The requests of one connection.
#[derive(Clone)]
pub(crate) struct GrpcClient {
    transport: Transport,
    /// The token of the login; `None` without one.
    token: Option<MetadataValue<Ascii>>,
}

/// Where the requests go.
#[derive(Clone)]
enum Transport {
    Grpc(Grpc<Channel>),
    #[cfg(test)]
    Simulated(crate::simulation::EtcdChannel),
}

/// A stream of requests and answers.
pub(crate) struct GrpcStream<R: EtcdRequest> {
    pub(crate) requests: Sender<R>,
    pub(crate) answers: Answers<R::Answer>,
}

/// The answers of a stream.
pub(crate) enum Answers<T> {
    Grpc(Streaming<T>),
    #[cfg(test)]
    Simulated(crate::simulation::AnswerStream<T>),
}

impl<T: 'static> Answers<T> {
    /// The next answer; `None` after the last one. It can be dropped at any time, and called again.
    pub(crate) async fn message(&mut self) -> Result<Option<T>, Status> {
        match self {
            Self::Grpc(answers) => answers.message().await,
            #[cfg(test)]
            Self::Simulated(answers) => answers.message().await,
        }
    }
}

impl GrpcClient {
    pub(crate) fn new(channel: Channel) -> Self {
        let grpc = Grpc::new(channel).max_decoding_message_size(MAX_ANSWER);
        Self { transport: Transport::Grpc(grpc), token: None }
    }

    #[cfg(test)]
    pub(crate) fn simulated(channel: crate::simulation::EtcdChannel) -> Self {
        Self { transport: Transport::Simulated(channel), token: None }
    }

    /// Logs in. All later requests have the token of the login.
    pub(crate) async fn log_in(&mut self, name: String, password: String) -> Result<(), Status> {
        let answer = self.call(AuthenticateRequest { name, password }).await?;
        let invalid = |_| Status::unauthenticated("the token of the login is not a header");
        self.token = Some(answer.token.parse().map_err(invalid)?);
        Ok(())
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn call<R: EtcdRequest>(&self, message: R) -> Result<R::Answer, Status> {
        let mut grpc = match &self.transport {
            Transport::Grpc(grpc) => ready(grpc).await?,
            #[cfg(test)]
            Transport::Simulated(channel) => return channel.call(message).await,
        };
        let request = self.with_headers(message);
        let method = R::METHOD.parse().expect("the path of a method");
        Ok(grpc.unary(request, method, ProstCodec::default()).await?.into_inner())
    }

    /// Opens a stream with its first request.
    pub(crate) async fn open<R: EtcdRequest>(&self, first: R) -> Result<GrpcStream<R>, Status> {
        let (requests, waiting) = mpsc::channel(STREAM_REQUESTS);
        // The channel is empty, and both of its ends exist.
        let _ = requests.try_send(first);
        let mut grpc = match &self.transport {
            Transport::Grpc(grpc) => ready(grpc).await?,
            #[cfg(test)]
            Transport::Simulated(channel) => {
                let answers = Answers::Simulated(channel.open(waiting).await?);
                return Ok(GrpcStream { requests, answers });
            }
        };
        let request = self.with_headers(ReceiverStream::new(waiting));
        let method = R::METHOD.parse().expect("the path of a method");
        let answers = grpc.streaming(request, method, ProstCodec::default()).await?;
        Ok(GrpcStream { requests, answers: Answers::Grpc(answers.into_inner()) })
    }

    fn with_headers<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let headers = request.metadata_mut();
        // A member without a leader ends its watches, so that the session leaves it.
        headers.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            headers.insert("token", token.clone());
        }
        request
    }
}

/// The client, when the connection accepts another request.
async fn ready(grpc: &Grpc<Channel>) -> Result<Grpc<Channel>, Status> {
    let mut grpc = grpc.clone();
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok(grpc)
}
